// A directory that appears under its name only when it is complete. It grows beside that name as NAME.partial; a run
// that ends early leaves what it finished there, and the next run of the same job goes on.
#pragma once

#include <string>
#include <string_view>

namespace kdelta {

class NewDirectory {
 public:
  // `job` is the text that tells one job from another; it is the file `job_name` of the unfinished directory. Throws
  // Error(invalid_argument) when `path` exists (an empty folder may), when NAME.partial belongs to another job or to a
  // process that still works on it, Error(failed) when the disk refuses.
  NewDirectory(const std::string& path, const std::string& job_name, const std::string& job);
  // Throws what the constructor would, takes and writes nothing. True when there is an unfinished directory of this
  // job.
  static bool check(const std::string& path, const std::string& job_name, const std::string& job);
  ~NewDirectory();
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  // Where what will be `path` grows.
  static std::string partial_of(const std::string& path);
  // Where to write; files of an earlier run of the same job may be here.
  const std::string& partial() const { return partial_; }
  bool resumed() const { return resumed_; }
  // Throws Error(failed).
  void commit();

 private:
  std::string path_, partial_, job_name_;
  bool resumed_ = false;
  int lock_ = -1;
};

// How the name ends under which a text file grows.
inline constexpr const char* kUnfinishedText = ".partial-text";
// True for the name of what a writer that was stopped leaves: a text file or a safetensors file, not yet complete.
bool is_unfinished_file(std::string_view name);

// A small text file, whole or not at all. Throws Error(failed).
void write_text_file(const std::string& path, const std::string& text);

}  // namespace kdelta
