#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kdelta/core/error.h"
#include "kdelta/io/json_events.h"
#include "kdelta/io/json_reader.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Json parse(std::string_view text, const JsonLimits& limits = {}) {
  return parse_json(text, {"t.json"}, limits);
}
std::string parse_error(std::string_view text, const JsonLimits& limits = {}) {
  return error_of([&] { parse(text, limits); });
}
JsonReader reader(std::string_view text) {
  return JsonReader(parse(text), {"config.json"});
}

std::string repeat(std::string_view piece, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += piece;
  return out;
}

TEST(JsonParse, KeepsKindsValuesAndTheOrderOfMembers) {
  const Json v = parse(R"({"z": [1, -2, 2.5, "s", true, null, {}], "a": 1e3, "m": 9223372036854775807})");
  EXPECT_EQ(json_text(v), R"({"z":[1,-2,2.5,"s",true,null,{}],"a":1000.0,"m":9223372036854775807})");
  EXPECT_EQ(v.find("m")->integer(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(v.find("a")->kind(), Json::Kind::real);
  EXPECT_EQ(v.find("absent"), nullptr);
}

TEST(JsonParse, RefusesMalformedTextWithSourceAndPlace) {
  for (const char* text : {"",      " ",          "{",       "[1,]",        "{\"a\":}",   "{'a':1}",  "nul",
                           "[1] 2", "01",         "+1",      ".5",          "1.",         "\"\x01\"", "// c\n1",
                           "NaN",   "[Infinity]", "\"\\q\"", "\"\\ud800\"", "{\"a\":1,}", "1e999",    "\"abc"}) {
    EXPECT_THAT(parse_error(text), testing::StartsWith("t.json: byte ")) << text;
  }
  EXPECT_EQ(parse_error(std::string_view("[1]\0]", 5)), "t.json: byte 4: a zero byte");
  EXPECT_THAT(parse_error("{\n \"a\": ?}"), HasSubstr("line 2, column 7"));
}

TEST(JsonParse, RefusesInvalidUtf8AndNeverRepeatsItInTheMessage) {
  for (const char* text :
       {"\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xe2\x82\"", "\xfe\xff"}) {
    const std::string message = parse_error(text);
    EXPECT_THAT(message, testing::StartsWith("t.json: byte ")) << text;
    EXPECT_TRUE(is_utf8(message)) << message;
  }
}

TEST(JsonParse, RefusesAKeyTwiceInOneObjectAtAnyDepth) {
  EXPECT_EQ(parse_error(R"({"a": 1, "b": 2, "a": 3})"), "t.json: a: the key appears twice");
  EXPECT_EQ(parse_error(R"({"x": [0, {"y": {"k": 1, "k": 1}}]})"), "t.json: x[1].y.k: the key appears twice");
  EXPECT_EQ(parse_error(R"([[], {"k": 1, "k": 1}])"), "t.json: [1].k: the key appears twice");
  EXPECT_EQ(parse_error(R"({"a": 1, "\u0061": 2})"), "t.json: a: the key appears twice");
  EXPECT_EQ(parse_error(R"([{"a": 1}, {"a": 2}])"), "no error");
}

TEST(JsonParse, RefusesNestingBeyondTheLimitAndAMillionBracketsCostNoStack) {
  EXPECT_EQ(parse_error(repeat("[", 64) + repeat("]", 64)), "no error");
  EXPECT_EQ(parse_error(repeat("[", 65) + repeat("]", 65)), "t.json: arrays and objects nest deeper than 64");
  EXPECT_THAT(parse_error(repeat("{\"a\":", 1000000)), HasSubstr("deeper than 64"));
  EXPECT_THAT(parse_error(repeat("[", 1000000)), HasSubstr("deeper than 64"));
}

TEST(JsonParse, RefusesMoreBytesOrValuesThanTheLimits) {
  EXPECT_EQ(parse_error("[1, 2, 3]", {.max_bytes = 8}), "t.json: 9 bytes of JSON, at most 8 expected");
  EXPECT_EQ(parse_error("[1, 2, 3]", {.max_values = 3}), "t.json: more than 3 values");
  EXPECT_EQ(parse_error("[1, 2, 3]", {.max_bytes = 9, .max_values = 4}), "no error");
}

TEST(JsonParse, CarriesTheCallersErrorCode) {
  try {
    parse_json("[", {.name = "request", .code = ErrorCode::invalid_argument});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
  }
}

TEST(JsonParse, IntegersBeyond64BitsKeepTheirDigitsAndAreNumbersButNotIntegers) {
  const char* text = "[1000000000000000019884624838656,18446744073709551615,-9223372036854775809]";
  const Json v = parse(text);
  EXPECT_EQ(json_text(v), text);
  EXPECT_EQ(v.array()[0].number(), 1000000000000000019884624838656.0);
  EXPECT_EQ(v.array()[1].number(), 18446744073709551615.0);
  EXPECT_THAT(error_of([&] { v.array()[2].integer(); }), HasSubstr("found number -9223372036854775809"));
}

TEST(JsonText, DoublesRoundTripBitForBit) {
  std::mt19937_64 rng(1);
  for (int i = 0; i < 20000; ++i) {
    const double x = std::bit_cast<double>(rng());
    if (!std::isfinite(x)) continue;
    const double y = parse(json_text(Json(x))).number();
    ASSERT_EQ(std::bit_cast<uint64_t>(x), std::bit_cast<uint64_t>(y)) << json_text(Json(x));
  }
}

TEST(JsonText, NumbersLookAsPythonWritesThem) {
  const std::pair<double, const char*> cases[] = {{1, "1.0"},
                                                  {-0.0, "-0.0"},
                                                  {0.0001, "0.0001"},
                                                  {0.00001, "1e-05"},
                                                  {1e15, "1000000000000000.0"},
                                                  {1e16, "1e+16"},
                                                  {9007199254740994.0, "9007199254740994.0"},
                                                  {1.5e-7, "1.5e-07"},
                                                  {1e100, "1e+100"},
                                                  {0.1, "0.1"},
                                                  {123456.789, "123456.789"},
                                                  {5e-324, "5e-324"},
                                                  {1.7976931348623157e308, "1.7976931348623157e+308"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(json_text(Json(value)), text);
}

TEST(JsonText, EscapesWhatMustBeAndKeepsOtherCharacters) {
  EXPECT_EQ(json_text(Json(std::string("\"\\/\b\f\n\r\t\x01\x1f\x7f\0é月🌙", 21))),
            std::string(R"("\"\\/\b\f\n\r\t\u0001\u001f)") + "\x7f" + R"(\u0000é月🌙")");
}

TEST(JsonText, RefusesWhatJsonCannotHold) {
  EXPECT_THAT(error_of([] { json_text(Json(NAN)); }), HasSubstr("expected a finite number"));
  EXPECT_THAT(error_of([] { json_text(Json(-INFINITY)); }), HasSubstr("-inf"));
  EXPECT_EQ(error_of([] { json_text(Json("a\xff")); }), "json: string \"a\\xff\" is not UTF-8");
  EXPECT_THAT(error_of([] { json_text(Json(Json::Object{{"k\xff", 1}})); }), HasSubstr("not UTF-8"));
}

TEST(JsonText, StylesChangeSeparatorsAndKeyOrderOnly) {
  const Json v = parse(R"({"b":[1,{"z":0,"é":1,"a":2}],"a":{}})");
  EXPECT_EQ(json_text(v, {.spaced = true}), R"({"b": [1, {"z": 0, "é": 1, "a": 2}], "a": {}})");
  EXPECT_EQ(json_text(v, {.sort_keys = true}), R"({"a":{},"b":[1,{"a":2,"z":0,"é":1}]})");
  EXPECT_EQ(
      json_text(v, {.indent = 2}),
      "{\n  \"b\": [\n    1,\n    {\n      \"z\": 0,\n      \"é\": 1,\n      \"a\": 2\n    }\n  ],\n  \"a\": {}\n}");
}

TEST(JsonValue, IsBuiltFromPlainValuesAndChangedInPlace) {
  Json v =
      Json::Object{{"id", "x"}, {"n", 3}, {"size", size_t{5}}, {"ok", true}, {"list", Json::Array{1, 2.5, nullptr}}};
  v.set("n", 4);
  v.set("new", Json::Object{});
  EXPECT_EQ(json_text(v), R"({"id":"x","n":4,"size":5,"ok":true,"list":[1,2.5,null],"new":{}})");
  EXPECT_EQ(parse(json_text(v)), v);
  EXPECT_THAT(error_of([&] { v.find("id")->integer(); }), HasSubstr("expected integer, found string \"x\""));
}

TEST(JsonPrintable, NeverPassesControlCharactersOrEndlessText) {
  EXPECT_EQ(printable("a\x1b[31m\n\xff\u00e9"), "a\\x1b[31m\\x0a\\xff\u00e9");
  EXPECT_EQ(printable("\u009b31m"), "\\xc2\\x9b31m");
  EXPECT_LE(printable(std::string(100000, 'x')).size(), 204u);
}

TEST(JsonUtf8, AcceptsExactlyTheWellFormedSequences) {
  // Every code point, and those past the last, against the rule by code point.
  const auto tail = [](uint32_t bits) { return static_cast<char>(0x80 | (bits & 63)); };
  const auto encode = [&](uint32_t c) {
    std::string s;
    if (c < 0x80)
      s = {static_cast<char>(c)};
    else if (c < 0x800)
      s = {static_cast<char>(0xc0 | c >> 6), tail(c)};
    else if (c < 0x10000)
      s = {static_cast<char>(0xe0 | c >> 12), tail(c >> 6), tail(c)};
    else
      s = {static_cast<char>(0xf0 | c >> 18), tail(c >> 12), tail(c >> 6), tail(c)};
    return s;
  };
  for (uint32_t c = 0; c < 0x120000; ++c)
    ASSERT_EQ(is_utf8(encode(c)), c < 0x110000 && !(c >= 0xd800 && c < 0xe000)) << c;
  for (const char* overlong :
       {"\xc0\xaf", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\x80", "\xc3", "\xf5\x80\x80\x80"})
    EXPECT_FALSE(is_utf8(overlong));
}

constexpr char kConfig[] = R"({"name": "k3", "eps": 1e-5, "one": 1, "flag": false, "none": null,
  "text": {"size": 128, "layers": [1, 2, 4], "deep": {"a": 1, "b": 2}}, "parts": [{"t": "x", "u": 1}, {"t": "y"}],
  "names": ["p", "q"], "left": {"x": 1}})";

TEST(JsonReaderTest, ReadsEveryType) {
  const JsonReader r = reader(kConfig);
  EXPECT_EQ(r.get<std::string>("name"), "k3");
  EXPECT_EQ(r.get<double>("eps"), 1e-5);
  EXPECT_EQ(r.get<double>("one"), 1.0);
  EXPECT_EQ(r.get<int64_t>("one"), 1);
  EXPECT_EQ(r.get<bool>("flag"), false);
  EXPECT_EQ(r.find<int64_t>("none"), std::nullopt);
  EXPECT_EQ(r.find<int64_t>("absent"), std::nullopt);
  const auto text = r.get<JsonReader>("text");
  EXPECT_EQ(text.get_in("size", 1, 128), 128);
  EXPECT_THAT(text.get<std::vector<int64_t>>("layers"), ElementsAre(1, 2, 4));
  EXPECT_THAT(text.get<std::vector<double>>("layers"), ElementsAre(1.0, 2.0, 4.0));
  EXPECT_THAT(r.get<std::vector<std::string>>("names"), ElementsAre("p", "q"));
  EXPECT_EQ(r.get<std::vector<JsonReader>>("parts")[1].get<std::string>("t"), "y");
  EXPECT_EQ(r.kind("none"), Json::Kind::null);
  EXPECT_EQ(r.kind("absent"), std::nullopt);
  EXPECT_THAT(text.keys(), ElementsAre("size", "layers", "deep"));
}

TEST(JsonReaderTest, NamesSourceAndPathOfEveryMistake) {
  const JsonReader r =
      reader(R"({"a": {"n": "7", "f": 1.0, "list": [1, "x"], "objects": [{}, {"k": true}], "big": 1e3, "z": null,
                                 "huge": 99999999999999999999}})");
  const auto a = r.get<JsonReader>("a");
  EXPECT_EQ(error_of([&] { a.get<int64_t>("hidden"); }), "config.json: a.hidden: missing");
  EXPECT_EQ(error_of([&] { a.get<int64_t>("n"); }), "config.json: a.n: string \"7\", expected an integer of 64 bits");
  EXPECT_EQ(error_of([&] { a.get<int64_t>("f"); }), "config.json: a.f: number 1.0, expected an integer of 64 bits");
  EXPECT_EQ(error_of([&] { a.get<int64_t>("huge"); }),
            "config.json: a.huge: number 99999999999999999999, expected an integer of 64 bits");
  EXPECT_EQ(error_of([&] { a.find<bool>("f"); }), "config.json: a.f: number 1.0, expected true or false");
  EXPECT_EQ(error_of([&] { a.get<double>("z"); }), "config.json: a.z: null, expected a value");
  EXPECT_EQ(error_of([&] { a.get<std::vector<int64_t>>("list"); }),
            "config.json: a.list[1]: string \"x\", expected an integer of 64 bits");
  EXPECT_EQ(error_of([&] { a.get<std::vector<int64_t>>("n"); }), "config.json: a.n: string \"7\", expected an array");
  EXPECT_EQ(error_of([&] { a.get<std::vector<JsonReader>>("objects")[1].get<std::string>("k"); }),
            "config.json: a.objects[1].k: true, expected a string");
  EXPECT_EQ(error_of([&] { r.get<std::vector<std::string>>("a"); }), "config.json: a: object of 7, expected an array");
  EXPECT_EQ(error_of([&] { a.get<JsonReader>("list"); }), "config.json: a.list: array of 2, expected an object");
  EXPECT_EQ(error_of([&] { a.refuse("big", "a multiple of 32"); }),
            "config.json: a.big: number 1000.0, expected a multiple of 32");
  EXPECT_EQ(error_of([] { reader("[]"); }), "config.json: array of 0, expected an object");
}

TEST(JsonReaderTest, RefusesIntegersOutOfRange) {
  const JsonReader r = reader(R"({"n": 0, "m": 5})");
  EXPECT_EQ(error_of([&] { r.get_in("n", 1, 9); }), "config.json: n: integer 0, expected 1 to 9");
  EXPECT_EQ(error_of([&] { r.find_in("n", 1, 9); }), "config.json: n: integer 0, expected 1 to 9");
  EXPECT_EQ(r.find_in("m", 5, 5), 5);
  EXPECT_EQ(r.find_in("absent", 1, 9), std::nullopt);
}

TEST(JsonReaderTest, ListsTheFieldsNobodyRead) {
  const JsonReader r = reader(kConfig);
  EXPECT_THAT(r.unread(), ElementsAre("name", "eps", "one", "flag", "none", "text", "parts", "names", "left"));
  r.get<std::string>("name");
  r.find<bool>("none");
  r.get<std::vector<std::string>>("names");
  r.kind("one");  // asking for the kind is not reading
  const auto text = r.get<JsonReader>("text");
  text.get<int64_t>("size");
  text.get<JsonReader>("deep").get<int64_t>("b");
  const auto parts = r.get<std::vector<JsonReader>>("parts");
  parts[1].get<std::string>("t");
  EXPECT_THAT(r.unread(),
              ElementsAre("eps", "one", "flag", "text.layers", "text.deep.a", "parts[0].t", "parts[0].u", "left"));
  EXPECT_THAT(text.unread(), ElementsAre("text.layers", "text.deep.a"));
  EXPECT_EQ(json_text(*r.raw("left")), R"({"x":1})");
  EXPECT_EQ(r.raw("absent"), nullptr);
  EXPECT_THAT(r.unread(), ElementsAre("eps", "one", "flag", "text.layers", "text.deep.a", "parts[0].t", "parts[0].u"));
}

TEST(JsonReaderTest, AFieldOfTheWrongTypeStaysUnread) {
  const JsonReader r = reader(R"({"n": "7"})");
  EXPECT_NE(error_of([&] { r.get<JsonReader>("n"); }), "no error");
  EXPECT_THAT(r.unread(), ElementsAre("n"));
}

TEST(JsonReaderTest, OutlivesTheDocumentItCameFrom) {
  JsonReader inner;
  {
    const JsonReader r = reader(R"({"a": {"b": [1]}})");
    inner = r.get<JsonReader>("a");
  }
  EXPECT_THAT(inner.get<std::vector<int64_t>>("b"), ElementsAre(1));
  EXPECT_THAT(inner.unread(), IsEmpty());
}

TEST(JsonReaderTest, OpensTheConfigsOfTheGoldens) {
  const JsonReader k3 = JsonReader::open("tests/golden/k3_a/config.json");
  EXPECT_EQ(k3.get<JsonReader>("text_config").get<JsonReader>("linear_attn_config").get<double>("gate_lower_bound"),
            -5.0);
  const JsonReader linear = JsonReader::open("tests/golden/linear_a/config.json");
  EXPECT_EQ(linear.find<int64_t>("q_lora_rank"), std::nullopt);
  EXPECT_THAT(error_of([] { JsonReader::open("tests/golden/absent.json"); }),
              HasSubstr("tests/golden/absent.json: cannot open"));
}

}  // namespace
}  // namespace kdelta
