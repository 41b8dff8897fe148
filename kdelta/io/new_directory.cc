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
    if (is_unfinished_file(entry.path().filename().string())) std::filesystem::remove(entry.path());
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
    : path_(without_slash(path)), partial_(path_ + ".partial"), job_name_(job_name) {
  check_target(path_);
  const bool made = mkdir(partial_.c_str(), 0777) == 0;
  if (!made && errno != EEXIST) fail(ErrorCode::failed, partial_, ": cannot create: ", std::strerror(errno));
  lock_ = open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_ < 0) fail(ErrorCode::failed, partial_, ": cannot open: ", std::strerror(errno));
  try {
    if (flock(lock_, LOCK_EX | LOCK_NB) != 0)
      fail(ErrorCode::invalid_argument, "out: ", partial_, ": another process is writing it");
    take_over(job);
  } catch (...) {
    close(lock_);  // no destructor runs for a constructor that throws
    throw;
  }
}

NewDirectory::~NewDirectory() {
  close(lock_);
}

void NewDirectory::take_over(const std::string& job) {
  const std::string job_path = partial_ + "/" + job_name_;
  if (std::filesystem::exists(job_path)) {
    if (read_text_file(job_path, kJobBytes) != job)
      fail(ErrorCode::invalid_argument, "out: ", partial_,
           " is what an unfinished run with other settings or another source left; remove it or give another name");
    resumed_ = true;
    remove_unfinished(partial_);
    return;
  }
  remove_unfinished(partial_);
  if (!std::filesystem::is_empty(partial_))
    fail(ErrorCode::invalid_argument, "out: ", partial_, " exists and is not ours; remove it or give another name");
  write_text_file(job_path, job);
}

void NewDirectory::commit() {
  if (rename(partial_.c_str(), path_.c_str()) != 0)
    fail(ErrorCode::failed, path_, ": cannot rename from ", partial_, ": ", std::strerror(errno));
  std::filesystem::remove(path_ + "/" + job_name_);  // last: a directory without it would not be known as ours
}

}  // namespace kdelta
