// Typed, guarded reading of a JSON object whose writer we do not trust. Every message names the source and the field's
// path: "config.json: text_config.hidden_size: missing", "...: string \"7\", expected an integer". It also remembers
// what was asked for, so that fields nobody read can be listed: a setting that is ignored without a word is how a model
// turns out a little wrong.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kdelta/io/json.h"

namespace kdelta {

// A cursor on one object of a document. Copies share the document and its record of reads; not for several threads at
// once.
class JsonReader {
 public:
  JsonReader() = default;  // of no document: only to be assigned to
  // Throws Error(source.code) when the root is not an object.
  JsonReader(Json root, JsonSource source);
  static JsonReader open(const std::string& path, const JsonLimits& limits = {});

  // T is bool, int64_t, double (integers are accepted), std::string, JsonReader (an object), or std::vector of int64_t,
  // double, std::string or JsonReader. get: absent or null is an error. find: absent or null is nullopt. A wrong type
  // is always one.
  template <class T>
  T get(std::string_view field) const;
  template <class T>
  std::optional<T> find(std::string_view field) const;
  // An integer within [low, high].
  int64_t get_in(std::string_view field, int64_t low, int64_t high) const;
  std::optional<int64_t> find_in(std::string_view field, int64_t low, int64_t high) const;

  // For fields of several types ("content" is a string or an array): ask first, then get. No value when absent. Not a
  // read.
  std::optional<Json::Kind> kind(std::string_view field) const;
  // Anything, whole (a tool schema); counts as read to the bottom. nullptr when absent.
  const Json* raw(std::string_view field) const;
  // The names of the members in the order of the text, for objects that are small maps (a lookup is linear; a large map
  // is walked with raw()). Not a read.
  std::vector<std::string> keys() const;

  // Paths of the fields below this object that nobody read; an object nobody entered counts as one field.
  std::vector<std::string> unread() const;

  // "text_config.hidden_size" for messages; the object's own, "" of the root.
  std::string path_of(std::string_view field) const;
  const std::string& path() const { return path_; }
  const std::string& source() const;
  // Throws the error of a field that reads well but says something unusable: "SOURCE: PATH: FOUND, expected WHAT".
  [[noreturn]] void refuse(std::string_view field, std::string_view expected) const;

 private:
  struct Document;
  JsonReader(std::shared_ptr<Document> document, const Json* object, std::string path);

  const Json* member(std::string_view field) const;
  template <class T>
  void convert(const Json& value, const std::string& path, T& out) const;
  template <class T>
  void convert(const Json& value, const std::string& path, std::vector<T>& out) const;
  [[noreturn]] void wrong(const std::string& path, const Json& value, std::string_view expected) const;
  void collect_unread(const Json& object, const std::string& path, std::vector<std::string>& out) const;

  std::shared_ptr<Document> document_;
  const Json* object_ = nullptr;
  std::string path_;  // "" for the root
};

}  // namespace kdelta
