#include "frontends/server/tool_use.h"

#include <algorithm>

#include "kdelta/api/request_fields.h"

namespace kdelta::server {
namespace {

using Choice = ToolUse::Choice;

[[noreturn]] void refuse_choice(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, "request: tool_choice: " + why);
}

// Says nothing about an object's members.
bool is_any_object(const Json& schema) {
  if (schema.kind() != Json::Kind::object) return schema.is_null();
  return std::ranges::all_of(schema.object(), [](const JsonMember& m) {
    return m.key == "type" ? m.value == Json("object")
                           : m.key == "title" || m.key == "description" || m.key == "$schema";
  });
}

Constraint::Tool tool_of(const Function& f, bool must_call) {
  const bool free = is_any_object(f.parameters) || !f.strict.value_or(must_call);
  return {.name = f.name, .parameters = free ? "" : json_text(f.parameters)};
}

std::string name_of(const JsonReader& choice) {
  if (choice.get<std::string>("type") != "function") choice.refuse("type", "function");
  return read_function_name(choice.get<JsonReader>("function"));
}

// auto, none, required, one function, or some of them.
void read_choice(const JsonReader& body, ToolUse& use) {
  if (body.kind("tool_choice") != Json::Kind::object) return read_mode(body, "tool_choice", use);
  const auto choice = body.get<JsonReader>("tool_choice");
  if (choice.get<std::string>("type") == "allowed_tools") {
    const auto allowed = choice.get<JsonReader>("allowed_tools");
    read_mode(allowed, "mode", use);
    for (const JsonReader& tool : allowed.get<std::vector<JsonReader>>("tools")) use.only.push_back(name_of(tool));
    if (use.only.empty()) allowed.refuse("tools", "at least one function");
    return;
  }
  use.choice = Choice::required;
  use.only = {name_of(choice)};
  use.one = true;
}

}  // namespace

Json declaration(const Function& f, const std::string& description) {
  Json::Object function{{"name", f.name}};
  if (!description.empty()) function.push_back({"description", description});
  if (!f.parameters.is_null()) function.push_back({"parameters", f.parameters});
  return Json::Object{{"type", "function"}, {"function", std::move(function)}};
}

void apply(const ToolUse& use, ChatSettings& settings, GenerateOptions& options) {
  for (size_t i = 0; i < use.functions.size(); ++i)
    if (std::ranges::find(use.functions, use.functions[i].name, &Function::name) - use.functions.begin() !=
        static_cast<std::ptrdiff_t>(i))
      throw Error(ErrorCode::invalid_argument,
                  "request: tools: two functions '" + printable(use.functions[i].name) + "'");
  if (use.choice == Choice::none) settings.tools_json.clear();
  for (const std::string& name : use.only)
    if (std::ranges::find(use.functions, name, &Function::name) == use.functions.end())
      refuse_choice(str("'", printable(name), "' is no function of tools"));
  const bool must_call = use.choice == Choice::required;
  if (must_call && use.functions.empty()) refuse_choice("a call is required, but there are no tools");
  if (settings.tools_json.empty()) return;
  const bool strict = std::ranges::any_of(use.functions, [](const Function& f) { return f.strict.value_or(false); });
  if (!options.constraint) {
    if (!must_call && !use.one && use.only.empty() && !strict) return;
    options.constraint = Constraint{.kind = Constraint::Kind::text};
  }
  settings.must_call = must_call;
  options.constraint->calls = true;
  options.constraint->must_call = must_call;
  options.constraint->one_call = use.one;
  for (const Function& f : use.functions)
    if (use.only.empty() || std::ranges::find(use.only, f.name) != use.only.end())
      options.constraint->tools.push_back(tool_of(f, must_call));
}

void read_mode(const JsonReader& from, const char* field, ToolUse& use) {
  const bool itself = field == std::string_view("tool_choice");
  const auto mode = from.find<std::string>(field).value_or("auto");
  if (mode == "required")
    use.choice = Choice::required;
  else if (mode == "none" && itself)
    use.choice = Choice::none;
  else if (mode != "auto")
    from.refuse(field, itself ? "auto, none, required or a function" : "auto or required");
}

void read_chat_tools(const JsonReader& body, ChatSettings& settings, GenerateOptions& options, FieldNames& names) {
  ToolUse use;
  for (const JsonReader& tool : body.find<std::vector<JsonReader>>("tools").value_or(std::vector<JsonReader>{})) {
    const auto function = tool.get<JsonReader>("function");
    const Json* parameters = function.raw("parameters");
    use.functions.push_back({.name = read_function_name(function),
                             .parameters = parameters == nullptr ? Json() : *parameters,
                             .strict = function.find<bool>("strict")});
    names.tools.emplace_back(printable(use.functions.back().name), function.path_of("parameters"));
  }
  read_choice(body, use);
  use.one = use.one || !body.find<bool>("parallel_tool_calls").value_or(true);
  apply(use, settings, options);
}

}  // namespace kdelta::server
