#include "kdelta/io/replaceable.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kdelta/core/check.h"

namespace kdelta {

void check_not_protected(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return;
  // Root may write whatever it likes; who took all write bits away meant root too.
  const bool any = (info.st_mode & (S_IWUSR | S_IWGRP | S_IWOTH)) != 0;
  if (!any || faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0)
    fail(ErrorCode::invalid_argument, path,
         ": is write-protected; expected another name, or a file that may be written");
}

void check_replaceable(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return;
  if (!S_ISREG(info.st_mode))
    fail(ErrorCode::invalid_argument, path, ": exists and is no regular file",
         S_ISLNK(info.st_mode) ? " but a symbolic link" : "", ", which would be replaced");
  check_not_protected(path);
}

}  // namespace kdelta
