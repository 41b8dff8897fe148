#include "kdelta/io/grammar/json_formats.h"

#include "kdelta/core/check.h"

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
#define KDELTA_IPV4 KDELTA_BYTE "(?:\\." KDELTA_BYTE "){3}"
#define KDELTA_HEX "[0-9a-fA-F]{1,4}"
// "::" stands for one group of zeros at least; the last two groups may be written as an IPv4 address.
#define KDELTA_IPV6                                                                                                 \
  "(?:(?:" KDELTA_HEX ":){7}" KDELTA_HEX "|(?:" KDELTA_HEX ":){1,7}:|(?:" KDELTA_HEX ":){1,6}:" KDELTA_HEX          \
  "|(?:" KDELTA_HEX ":){1,5}(?::" KDELTA_HEX "){2}|(?:" KDELTA_HEX ":){1,4}(?::" KDELTA_HEX                         \
  "){3}"                                                                                                            \
  "|(?:" KDELTA_HEX ":){1,3}(?::" KDELTA_HEX "){4}|(?:" KDELTA_HEX ":){1,2}(?::" KDELTA_HEX                         \
  "){5}"                                                                                                            \
  "|" KDELTA_HEX ":(?::" KDELTA_HEX "){6}|:(?:(?::" KDELTA_HEX                                                      \
  "){1,7}|:)"                                                                                                       \
  "|(?:" KDELTA_HEX ":){6}" KDELTA_IPV4 "|::(?:" KDELTA_HEX ":){0,5}" KDELTA_IPV4 "|" KDELTA_HEX "::(?:" KDELTA_HEX \
  ":){0,4}" KDELTA_IPV4 "|(?:" KDELTA_HEX ":){2}:(?:" KDELTA_HEX ":){0,3}" KDELTA_IPV4 "|(?:" KDELTA_HEX            \
  ":){3}:(?:" KDELTA_HEX ":){0,2}" KDELTA_IPV4 "|(?:" KDELTA_HEX ":){4}:(?:" KDELTA_HEX ":)?" KDELTA_IPV4           \
  "|(?:" KDELTA_HEX ":){5}:" KDELTA_IPV4 ")"
// RFC 1123; at most eight labels of 30 letters, so that no name has more than 253.
#define KDELTA_LABEL "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,28}[a-zA-Z0-9])?"
// RFC 3986.
#define KDELTA_IN_PATH "(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"
#define KDELTA_URI                                                                           \
  "[a-zA-Z][a-zA-Z0-9+.-]{0,20}:(?://(?:(?:[a-zA-Z0-9._~!$&'()*+,;=:-]|%[0-9a-fA-F]{2})*@)?" \
  "(?:(?:[a-zA-Z0-9._~!$&'()*+,;=-]|%[0-9a-fA-F]{2})*|\\[" KDELTA_IPV6                       \
  "\\])(?::[0-9]{0,5})?"                                                                     \
  "(?:/" KDELTA_IN_PATH "*)*|/?(?:" KDELTA_IN_PATH "+(?:/" KDELTA_IN_PATH                    \
  "*)*)?)"                                                                                   \
  "(?:\\?(?:" KDELTA_IN_PATH "|[/?])*)?(?:#(?:" KDELTA_IN_PATH "|[/?])*)?"
// RFC 3339, appendix A; the two sides are what may stand at the first place and the rest of them in turn.
#define KDELTA_DURATION                                                                                     \
  "P(?:[0-9]{1,9}W|(?:[0-9]{1,9}D|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?)" \
  "(?:T" KDELTA_HOURS ")?|T" KDELTA_HOURS ")"
#define KDELTA_HOURS "(?:[0-9]{1,9}S|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?)"

struct Format {
  std::string_view name, pattern;
};
constexpr Format kFormats[] = {
    {"date-time", KDELTA_DATE "T" KDELTA_TIME},
    {"date", KDELTA_DATE},
    {"time", KDELTA_TIME},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"duration", KDELTA_DURATION},
    {"ipv4", KDELTA_IPV4},
    {"ipv6", KDELTA_IPV6},
    {"hostname", KDELTA_LABEL "(?:\\." KDELTA_LABEL "){0,7}"},
    {"uri", KDELTA_URI},
    {"email",
     "[a-zA-Z0-9_+-]{1,20}(?:\\.[a-zA-Z0-9_+-]{1,20}){0,3}@[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?"
     "(?:\\.[a-zA-Z]{2,20}){1,3}"},
};

}  // namespace

std::string_view known_format(const Json& format, const SchemaTree& tree, const Json& schema) {
  std::string names;
  for (const Format& f : kFormats) {
    if (format == Json(f.name)) return f.pattern;
    names += str(names.empty() ? "" : &f == std::end(kFormats) - 1 ? " or " : ", ", f.name);
  }
  tree.refuse(schema, "format", describe(format) + ", expected " + names);
}

}  // namespace kdelta::grammar
