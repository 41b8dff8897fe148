#include "kdelta/io/new_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "kdelta/core/error.h"
#include "kdelta/io/mapped_file.h"

namespace kdelta {
namespace {

constexpr int64_t kJobBytes = int64_t{1} << 26;  // lists the files of a checkpoint

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

void check_target(const std::string& path) {
  if (path.empty()) fail(ErrorCode::invalid_argument, "out: empty name");
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return;
  if (!S_ISDIR(info.st_mode) || !std::filesystem::is_empty(path))
    fail(ErrorCode::invalid_argument, "out: ", path, " exists, expected a new name or an empty folder");
}

void remove_unfinished(const std::string& directory) {
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    if (entry.is_regular_file() && is_unfinished_file(entry.path().filename().string()))
      std::filesystem::remove(entry.path());
}

[[noreturn]] void fail_to_create(const std::string& partial) {
  fail(ErrorCode::failed, partial, ": cannot create: ", std::strerror(errno));
}

// The caller closes what it returns, and the lock with it.
int lock_directory(const std::string& partial) {
  const int lock = open(partial.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock < 0) fail(ErrorCode::failed, partial, ": cannot open: ", std::strerror(errno));
  if (flock(lock, LOCK_EX | LOCK_NB) == 0) return lock;
  close(lock);
  fail(ErrorCode::invalid_argument, "out: ", partial, ": another process is writing it");
}

// False for a directory that is as good as new: empty, or left before even the job was written.
bool holds_job(const std::string& partial, const std::string& job_name, const std::string& job) {
  const std::string job_path = partial + "/" + job_name;
  if (std::filesystem::exists(job_path)) {
    if (read_text_file(job_path, kJobBytes) != job)
      fail(ErrorCode::invalid_argument, "out: ", partial,
           " is what an unfinished run with other settings or another source left; remove it or give another name");
    return true;
  }
  for (const auto& entry : std::filesystem::directory_iterator(partial))
    if (entry.path().filename() != job_name + kUnfinishedText)
      fail(ErrorCode::invalid_argument, "out: ", partial, " exists and is not ours; remove it or give another name");
  return false;
}

}  // namespace

bool is_unfinished_file(std::string_view name) {
  return name.find(".partial-") != name.npos;  // kdelta/io/safetensors_write.cc
}

void write_text_file(const std::string& path, const std::string& text) {
  const std::string unfinished = path + kUnfinishedText;
  std::ofstream file(unfinished, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file || std::rename(unfinished.c_str(), path.c_str()) != 0)
    fail(ErrorCode::failed, path, ": cannot write: ", std::strerror(errno));
}

NewDirectory::NewDirectory(const std::string& path, const std::string& job_name, const std::string& job)
    : path_(without_slash(path)), partial_(partial_of(path_)), job_name_(job_name) {
  check_target(path_);
  const bool made = mkdir(partial_.c_str(), 0777) == 0;
  if (!made && errno != EEXIST) fail_to_create(partial_);
  lock_ = lock_directory(partial_);
  try {
    resumed_ = holds_job(partial_, job_name_, job);
    if (resumed_)
      remove_unfinished(partial_);
    else
      write_text_file(partial_ + "/" + job_name_, job);
  } catch (...) {
    close(lock_);  // no destructor runs for a constructor that throws
    throw;
  }
}

std::string NewDirectory::partial_of(const std::string& path) {
  return without_slash(path) + ".partial";
}

bool NewDirectory::check(const std::string& path, const std::string& job_name, const std::string& job) {
  const std::string target = without_slash(path), partial = partial_of(path);
  check_target(target);
  struct stat info {};
  if (lstat(partial.c_str(), &info) != 0) {
    // With the dot a parent that is a file is none.
    const std::string parent = std::filesystem::path(partial).parent_path() / ".";
    if (errno != ENOENT || faccessat(AT_FDCWD, parent.c_str(), W_OK | X_OK, AT_EACCESS) != 0) fail_to_create(partial);
    return false;
  }
  close(lock_directory(partial));
  return holds_job(partial, job_name, job);
}

NewDirectory::~NewDirectory() {
  close(lock_);
}

void NewDirectory::commit() {
  if (rename(partial_.c_str(), path_.c_str()) != 0)
    fail(ErrorCode::failed, path_, ": cannot rename from ", partial_, ": ", std::strerror(errno));
  std::filesystem::remove(path_ + "/" + job_name_);  // last: a directory without it would not be known as ours
}

}  // namespace kdelta
