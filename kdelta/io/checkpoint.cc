#include "kdelta/io/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "kdelta/core/error.h"
#include "kdelta/io/checkpoint_index.h"
#include "kdelta/io/json.h"
#include "kdelta/io/mapped_file.h"
#include "kdelta/io/safetensors.h"

namespace kdelta {
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr size_t kNamesInMessage = 5;  // enough to see the pattern; a checkpoint may have a hundred shards

std::string join(const std::string& directory, const std::string& name) {
  return (std::filesystem::path(directory) / name).string();
}

// Names of the *.safetensors files, ordered. Hidden ones are left out: archives made on other systems carry "._" twins.
std::vector<std::string> list_safetensors(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name.ends_with(".safetensors") && !name.starts_with('.')) names.push_back(std::move(name));
  }
  if (error) fail(ErrorCode::bad_file, directory, ": cannot read the directory: ", error.message());
  std::ranges::sort(names);
  return names;
}

std::string list_of(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size() && i < kNamesInMessage; ++i) out += (i > 0 ? ", " : "") + printable(names[i]);
  return names.size() > kNamesInMessage ? out + str(" and ", names.size() - kNamesInMessage, " more") : out;
}

void require_shards(const std::string& directory, const CheckpointIndex& index) {
  std::vector<std::string> missing;
  for (const std::string& shard : index.shards) {
    std::error_code error;
    if (!std::filesystem::exists(join(directory, shard), error))
      missing.push_back(shard);  // false for a dangling link too
  }
  if (!missing.empty())
    fail(ErrorCode::bad_file, directory, ": ", missing.size(), " of ", index.shards.size(), " shards that ", kIndexName,
         " names are missing: ", list_of(missing));
}

// The only file of a checkpoint without index.
std::string single_file(const std::string& directory, const std::vector<std::string>& present) {
  if (present.empty()) fail(ErrorCode::bad_file, directory, ": no ", kIndexName, " and no *.safetensors file");
  if (present.size() > 1)
    fail(ErrorCode::bad_file, directory, ": ", present.size(), " safetensors files but no ", kIndexName,
         " to say which belong to the model: ", list_of(present));
  return present.front();
}

}  // namespace

struct Checkpoint::Impl {
  std::string directory;
  std::vector<MappedFile> files;
  std::vector<TensorInfo> tensors;
  std::vector<std::string> notes;
  int64_t total_bytes = 0;

  void open_files(const std::vector<std::string>& names);
  void check_against(const CheckpointIndex& index) const;
  void write_notes(const std::vector<std::string>& present, const CheckpointIndex& index);
};

Checkpoint Checkpoint::open(const std::string& directory) {
  const auto impl = std::make_shared<Impl>();
  impl->directory = directory;
  const std::vector<std::string> present = list_safetensors(directory);
  const std::string index_path = join(directory, kIndexName);
  std::error_code error;
  if (std::filesystem::exists(
          std::filesystem::symlink_status(index_path, error))) {  // a dangling link is an error, not "no index"
    const CheckpointIndex index = read_checkpoint_index(index_path);
    require_shards(directory, index);
    impl->open_files(index.shards);
    impl->check_against(index);
    impl->write_notes(present, index);
  } else {
    impl->open_files({single_file(directory, present)});
  }
  Checkpoint checkpoint;
  checkpoint.impl_ = impl;
  return checkpoint;
}

// Maps and validates every file, merges the tensors by name and refuses a name that two files have.
void Checkpoint::Impl::open_files(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const MappedFile& file = files.emplace_back(join(directory, name));
    for (TensorInfo& tensor : parse_safetensors(file.bytes(), file.path())) {
      tensor.file = static_cast<int>(files.size()) - 1;
      total_bytes += tensor.bytes;
      tensors.push_back(std::move(tensor));
    }
  }
  std::ranges::sort(tensors, {}, &TensorInfo::name);
  const auto twice = std::ranges::adjacent_find(tensors, {}, &TensorInfo::name);
  if (twice != tensors.end())
    fail(ErrorCode::bad_file, files[static_cast<size_t>(twice[1].file)].path(), ": tensor ", printable(twice->name),
         ": also in ", files[static_cast<size_t>(twice->file)].path());
}

// Both lists are ordered by name: the first difference is the message.
void Checkpoint::Impl::check_against(const CheckpointIndex& index) const {
  auto tensor = tensors.begin();
  for (const auto& entry : index.entries) {
    const std::string& shard = files[static_cast<size_t>(entry.shard)].path();
    if (tensor != tensors.end() && tensor->name < entry.tensor) break;
    if (tensor == tensors.end() || tensor->name != entry.tensor)
      fail(ErrorCode::bad_file, shard, ": tensor ", printable(entry.tensor), ": missing, but ", kIndexName,
           " says it is here");
    if (tensor->file != entry.shard)
      fail(ErrorCode::bad_file, shard, ": tensor ", printable(entry.tensor), ": missing, ", kIndexName,
           " says it is here, found it in ", files[static_cast<size_t>(tensor->file)].path());
    ++tensor;
  }
  if (tensor != tensors.end())
    fail(ErrorCode::bad_file, files[static_cast<size_t>(tensor->file)].path(), ": tensor ", printable(tensor->name),
         ": not in ", kIndexName);
}

void Checkpoint::Impl::write_notes(const std::vector<std::string>& present, const CheckpointIndex& index) {
  for (const std::string& name : present)
    if (!std::ranges::binary_search(index.shards, name))
      notes.push_back(str(printable(name), ": not named by ", kIndexName, ", ignored"));
  if (index.total_size && *index.total_size != total_bytes)
    notes.push_back(
        str(kIndexName, ": metadata.total_size ", *index.total_size, ", the tensors have ", total_bytes, " bytes"));
}

const std::string& Checkpoint::directory() const {
  return impl_->directory;
}
std::span<const TensorInfo> Checkpoint::tensors() const {
  return impl_->tensors;
}

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(impl_->tensors, name, {},
                                           [](const TensorInfo& t) -> std::string_view { return t.name; });
  return at != impl_->tensors.end() && at->name == name ? &*at : nullptr;
}

const uint8_t* Checkpoint::data(const TensorInfo& tensor) const {
  return impl_->files[static_cast<size_t>(tensor.file)].bytes().data() + tensor.begin;
}

const std::string& Checkpoint::file_path(int file) const {
  return impl_->files.at(static_cast<size_t>(file)).path();
}
int Checkpoint::file_count() const {
  return static_cast<int>(impl_->files.size());
}
int64_t Checkpoint::total_bytes() const {
  return impl_->total_bytes;
}
std::span<const std::string> Checkpoint::notes() const {
  return impl_->notes;
}

}  // namespace kdelta
