#include "kdelta/api/answer_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "kdelta/core/check.h"
#include "kdelta/io/json_reader.h"
#include "kdelta/io/replaceable.h"

namespace kdelta {
namespace {

constexpr JsonLimits kLine{.max_bytes = int64_t{1} << 30, .max_values = int64_t{1} << 22};
constexpr std::string_view kBegin = "{\"id\":\"batch_req_";  // of every line that a batch writes

struct Kept {
  std::string id, request;  // request: "" in a line that does not say
  bool error = false;
};

Kept read_answer_line(const std::string& line, const std::string& where) {
  const JsonSource source{.name = where, .code = ErrorCode::invalid_argument};
  const JsonReader r(parse_json(line, source, kLine), source);
  const auto answer = r.find<JsonReader>("response");
  const bool response = answer.has_value();
  const bool error = r.find<JsonReader>("error").has_value();
  if (response == error) fail(ErrorCode::invalid_argument, where, ": no answer, expected one of response and error");
  return {.id = r.get<std::string>("custom_id"),
          .request = response ? answer->find<std::string>("request_id").value_or("") : "",
          .error = error};
}

// A line without its end: our own is asked again, another's file must not lose it.
void check_torn(const std::string& line, const std::string& where) {
  if (line.starts_with(kBegin) || kBegin.starts_with(line)) return;
  fail(ErrorCode::invalid_argument, where, ": ", printable(line), ", expected an answer of this format");
}

}  // namespace

void check_answer_file(const std::string& path) {
  std::error_code unknown;
  if (std::filesystem::exists(path, unknown) && !std::filesystem::is_regular_file(path, unknown))
    fail(ErrorCode::invalid_argument, "output: ", path, ": no regular file");
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder, unknown))
    fail(ErrorCode::invalid_argument, "output: ", path, ": there is no folder ", folder.string());
  try {
    check_not_protected(path);
  } catch (const Error& e) {
    fail(e.code(), "output: ", e.what());
  }
}

void check_answers(const std::string& path) {
  check_answer_file(path);
  std::ifstream in(path, std::ios::binary);
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    const std::string where = str("output: ", path, ": line ", ++number);
    if (in.eof())
      check_torn(line, where);
    else if (!line.empty())
      (void)read_answer_line(line, where);
  }
}

AnswerFile::AnswerFile(const std::string& path, const Asked& asked) : path_(path) {
  std::error_code unknown;
  // A rename must not put a file in the place of a link.
  if (std::filesystem::exists(path_, unknown)) path_ = std::filesystem::canonical(path_).string();
  try {
    file_ = open_locked(path_, O_RDWR | O_CREAT | O_APPEND);
    keep(asked);
  } catch (...) {
    if (file_ >= 0) close(file_);  // no destructor runs for a constructor that throws
    if (replaced_ >= 0) close(replaced_);
    throw;
  }
}

AnswerFile::~AnswerFile() {
  close(file_);
  if (replaced_ >= 0) close(replaced_);
}

int AnswerFile::open_locked(const std::string& path, int flags) const {
  check_answer_file(path);
  const int file = open(path.c_str(), flags | O_CLOEXEC, 0666);
  if (file < 0) fail(ErrorCode::invalid_argument, "output: ", path, ": cannot be written: ", std::strerror(errno));
  struct stat opened {};
  struct stat named {};
  const bool locked = flock(file, LOCK_EX | LOCK_NB) == 0;
  const int why = errno;
  // Between both calls another process may have put a file of its own in this one's place.
  if (locked && fstat(file, &opened) == 0 && stat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
      opened.st_dev == named.st_dev)
    return file;
  close(file);
  if (locked || why == EWOULDBLOCK)
    fail(ErrorCode::invalid_argument, "output: ", path, ": another process is writing it");
  fail(ErrorCode::failed, "output: ", path, ": cannot be locked: ", std::strerror(why));
}

void AnswerFile::keep(const Asked& asked) {
  std::ifstream in(path_, std::ios::binary);
  std::string line;
  int64_t number = 0, whole = 0;
  std::set<int64_t> dropped;
  while (std::getline(in, line)) {
    const std::string where = str("output: ", path_, ": line ", ++number);
    if (in.eof()) {  // no newline behind it
      check_torn(line, where);
      break;
    }
    whole += std::ssize(line) + 1;
    if (line.empty()) continue;
    Kept kept = read_answer_line(line, where);
    const auto now = asked.find(kept.id);
    if (now != asked.end() && !kept.request.empty() && kept.request != now->second)
      fail(
          ErrorCode::invalid_argument, where, ": the answer to ", printable(kept.id),
          " is of another request, model, precision or sampling setting than now; remove it, or write to another file");
    if (kept.error && now != asked.end())
      dropped.insert(number);
    else
      answered_.insert(std::move(kept.id));
  }
  if (in.bad()) fail(ErrorCode::failed, "output: ", path_, ": cannot be read");
  if (dropped.empty()) {
    if (ftruncate(file_, whole) != 0)
      fail(ErrorCode::failed, "output: ", path_, ": cannot be cut: ", std::strerror(errno));
    return;
  }
  std::string text;
  in.clear();
  in.seekg(0);
  for (int64_t n = 1; std::getline(in, line) && !in.eof(); ++n)
    if (!dropped.contains(n)) text += line + "\n";
  replace(text);
}

// Whole or not at all: a process that is stopped here leaves the file as it was.
void AnswerFile::replace(const std::string& text) {
  const std::string unfinished = path_ + ".partial-answers";
  const int file = open_locked(unfinished, O_RDWR | O_CREAT | O_APPEND);
  try {
    struct stat old {};
    if (ftruncate(file, 0) != 0 || fstat(file_, &old) != 0 || fchmod(file, old.st_mode & 07777) != 0)
      fail(ErrorCode::failed, "output: ", unfinished, ": cannot be written: ", std::strerror(errno));
    write_all(file, text);
    if (fsync(file) != 0 || std::rename(unfinished.c_str(), path_.c_str()) != 0)
      fail(ErrorCode::failed, "output: ", unfinished, ": cannot be written: ", std::strerror(errno));
  } catch (...) {
    unlink(unfinished.c_str());
    close(file);
    throw;
  }
  replaced_ = file_;
  file_ = file;
}

void AnswerFile::append(const std::string& line) {
  write_all(file_, line + "\n");
}

void AnswerFile::write_all(int file, const std::string& text) const {
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = write(file, text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(ErrorCode::failed, "output: ", path_, ": cannot be written: ", std::strerror(errno));
    at += static_cast<size_t>(n);
  }
}

}  // namespace kdelta
