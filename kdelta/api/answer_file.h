// The file of answers that a batch writes: a line each, flushed at once, so that a stopped run loses at most the line
// it was writing.
#pragma once

#include <map>
#include <set>
#include <string>

namespace kdelta {

// What AnswerFile refuses of a path before it opens anything: no regular file, write-protected, no such folder.
void check_answer_file(const std::string& path);
// The same, and of the lines that the file holds what is no answer.
void check_answers(const std::string& path);

class AnswerFile {
 public:
  // Requests by their id, each with the number of what its answer depends on.
  using Asked = std::map<std::string, std::string>;

  // Keeps what the file at `path` holds, but for a last line that is torn and for errors of requests in `asked`, which
  // are to be tried again. Throws Error(invalid_argument) for what is no regular file, for a line that is no answer or
  // answers something else that was asked by the same id (by its number; the file stays as it is), and while another
  // process has it open here.
  AnswerFile(const std::string& path, const Asked& asked);
  ~AnswerFile();
  AnswerFile(const AnswerFile&) = delete;
  AnswerFile& operator=(const AnswerFile&) = delete;

  // The ids of the requests whose answers were kept, those with errors that nobody asks again included.
  const std::set<std::string>& answered() const { return answered_; }
  // Throws Error(failed) with the system's reason.
  void append(const std::string& line);

 private:
  int open_locked(const std::string& path, int flags) const;
  void keep(const Asked& asked);
  void replace(const std::string& text);
  void write_all(int file, const std::string& text) const;

  std::string path_;
  std::set<std::string> answered_;
  int file_ = -1, replaced_ = -1;  // the file that `file_` took the place of: its lock is held as long
};

}  // namespace kdelta
