#include "kdelta/io/grammar/json_formats.h"

namespace kdelta::grammar {
namespace {

// Dates are real ones, 29 February in leap years alone; years from 0001 on.
#define KDELTA_LEAP "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define KDELTA_YEAR "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
#define KDELTA_DATE                                                                          \
  "(?:" KDELTA_YEAR                                                                          \
  "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|" \
  "02-(?:0[1-9]|1[0-9]|2[0-8]))|" KDELTA_LEAP "-02-29)"
#define KDELTA_TIME \
  "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define KDELTA_BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"

struct Format {
  std::string_view name, pattern;
};
constexpr Format kFormats[] = {
    {"date-time", KDELTA_DATE "T" KDELTA_TIME},
    {"date", KDELTA_DATE},
    {"time", KDELTA_TIME},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"ipv4", KDELTA_BYTE "(?:\\." KDELTA_BYTE "){3}"},
    {"email",
     "[a-zA-Z0-9_+-]{1,20}(?:\\.[a-zA-Z0-9_+-]{1,20}){0,3}@[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?"
     "(?:\\.[a-zA-Z]{2,20}){1,3}"},
};

}  // namespace

std::string_view format_pattern(std::string_view format) {
  for (const Format& f : kFormats)
    if (f.name == format) return f.pattern;
  return {};
}

const char* format_names() {
  return "date-time, date, time, uuid, ipv4 or email";
}

}  // namespace kdelta::grammar
