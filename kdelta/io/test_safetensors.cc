#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "kdelta/core/error.h"
#include "kdelta/io/safetensors.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// A file of this header and so many data bytes.
std::string file_of(const std::string& header, size_t data_bytes = 0) {
  std::string out(8, '\0');
  const uint64_t n = header.size();
  std::memcpy(out.data(), &n, 8);
  out += header;
  for (size_t i = 0; i < data_bytes; ++i) out += static_cast<char>(i);
  return out;
}

std::vector<TensorInfo> parse(const std::string& file) {
  return parse_safetensors({reinterpret_cast<const uint8_t*>(file.data()), file.size()}, "m.safetensors");
}
std::string error_of_file(const std::string& file) {
  return test::error_of([&] { parse(file); });
}
std::string error_of_header(const std::string& header, size_t data_bytes = 0) {
  return error_of_file(file_of(header, data_bytes));
}
std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return str('"', name, R"(":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)", offsets, "}");
}
std::string header(std::initializer_list<std::string> entries) {
  std::string out = "{";
  for (const std::string& e : entries) out += (out.size() > 1 ? "," : "") + e;
  return out + "}";
}

const std::string kTwo = header({R"("__metadata__":{"format":"pt"})", entry("b", "BF16", "[2,3]", "[4,16]"),
                                 entry("a", "F32", "[1]", "[0,4]")}) +
                         "  ";

TEST(Safetensors, ReadsNamesTypesShapesAndPlacesInTheOrderOfTheData) {
  const auto t = parse(file_of(kTwo, 16));
  ASSERT_EQ(t.size(), 2u);
  EXPECT_EQ(t[0].name, "a");
  EXPECT_EQ(t[0].dtype, DType::f32);
  EXPECT_EQ(t[0].begin, 8 + std::ssize(kTwo));
  EXPECT_EQ(t[0].bytes, 4);
  EXPECT_EQ(t[1].name, "b");
  EXPECT_EQ(t[1].dtype, DType::bf16);
  EXPECT_THAT(t[1].shape, testing::ElementsAre(2, 3));
  EXPECT_EQ(t[1].begin, t[0].begin + 4);
  EXPECT_EQ(t[1].bytes, 12);
}

TEST(Safetensors, AFileCutAnywhereIsRefused) {
  const std::string whole = file_of(kTwo, 16);
  for (size_t n = 0; n < whole.size(); ++n)
    EXPECT_THAT(error_of_file(whole.substr(0, n)), StartsWith("m.safetensors: ")) << n;
}

TEST(Safetensors, AnyByteOfTheHeaderMayBeAnyValueWithoutACrash) {
  std::string file = file_of(kTwo, 16);
  for (size_t i = 0; i < file.size() - 16; ++i) {
    const char original = file[i];
    for (int value = 0; value < 256; ++value) {
      file[i] = static_cast<char>(value);
      const std::string error = error_of_file(file);  // some changes are legal: a letter of a name
      EXPECT_TRUE(error == "no error" || error.starts_with("m.safetensors: ")) << error;
    }
    file[i] = original;
  }
}

TEST(Safetensors, TheMissingEndOfTheDataNamesTheTensorThatLacksIt) {
  const std::string whole = file_of(kTwo, 16);
  EXPECT_EQ(error_of_file(whole.substr(0, whole.size() - 1)),
            "m.safetensors: tensor b: data_offsets [4, 16], but the file holds 15 bytes of data: truncated");
}

TEST(Safetensors, BytesAfterTheLastTensorAreRefused) {
  EXPECT_THAT(error_of_file(file_of(kTwo, 17)), HasSubstr("what follows the last tensor belongs to none"));
}

TEST(Safetensors, AHeaderLengthThatLiesIsRefusedBeforeAnythingIsRead) {
  const auto with_length = [](uint64_t n, const std::string& rest) {
    std::string file(8, '\0');
    std::memcpy(file.data(), &n, 8);
    return error_of_file(file + rest);
  };
  EXPECT_EQ(with_length(2147483648u, "{}"),
            "m.safetensors: header of 2147483648 bytes claimed, expected at most 100000000: not a safetensors file");
  EXPECT_THAT(with_length(~uint64_t{0}, "{}"), HasSubstr("header of 18446744073709551615 bytes claimed"));
  EXPECT_THAT(with_length(uint64_t{1} << 63, "{}"), HasSubstr("expected at most"));
  EXPECT_EQ(with_length(3, "{}"), "m.safetensors: header of 3 bytes claimed, but only 2 follow: the file is truncated");
  EXPECT_THAT(with_length(0, "{}"), HasSubstr("not a safetensors file"));
}

TEST(Safetensors, FilesOfAnotherKindAreRefusedWithTheirReason) {
  EXPECT_EQ(error_of_file(""), "m.safetensors: 0 bytes, expected at least the 8 of the header length");
  EXPECT_THAT(error_of_file("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"),
              HasSubstr("Git LFS pointer"));
  EXPECT_THAT(error_of_file("GGUF\x03" + std::string(100, '\0')), HasSubstr("not a safetensors file"));
  EXPECT_THAT(error_of_header("[]"), HasSubstr("not a safetensors file"));
  EXPECT_THAT(error_of_header(" {}"), HasSubstr("not a safetensors file"));
}

TEST(Safetensors, MalformedJsonIsRefusedWithItsPlace) {
  for (const char* header : {"{", "{}x", "{}{}", "{\"a\"", "{'a':1}", "{}\x01"})
    EXPECT_THAT(error_of_header(header), StartsWith("m.safetensors: header: byte ")) << header;
  EXPECT_THAT(error_of_header(std::string("{}\0", 3)), StartsWith("m.safetensors: header: byte "));
}

TEST(Safetensors, DeepJsonIsRefused) {
  std::string deep = "{\"a\":";
  for (int i = 0; i < 1000000; ++i) deep += '[';
  EXPECT_EQ(error_of_header(deep), "m.safetensors: tensor a: an array, expected an object");
  EXPECT_EQ(error_of_header("{\"a\":{\"shape\":[[1]]}}"),
            "m.safetensors: tensor a: shape: an array, expected an integer of 64 bits");
}

TEST(Safetensors, NamesThatAreNotUtf8OrEmptyOrTwiceAreRefused) {
  EXPECT_THAT(error_of_header("{\"\xff\":{}}"), HasSubstr("header: byte "));
  EXPECT_THAT(error_of_header(header({entry("", "U8", "[0]", "[0,0]")})), HasSubstr("the name is empty"));
  EXPECT_EQ(error_of_header(header({entry("a", "U8", "[1]", "[0,1]"), entry("b", "U8", "[1]", "[1,2]"),
                                    entry("\\u0061", "U8", "[1]", "[2,3]")}),
                            3),
            "m.safetensors: tensor a: appears twice in the header");
}

TEST(Safetensors, ControlCharactersOfANameNeverReachTheMessage) {
  const std::string error = error_of_header(R"({"a\u001b[31m\n":7})");
  EXPECT_EQ(error, "m.safetensors: tensor a\\x1b[31m\\x0a: integer 7, expected an object");
}

TEST(Safetensors, OverlapAndGapNameBothPlaces) {
  EXPECT_EQ(error_of_header(header({entry("a", "U8", "[4]", "[0,4]"), entry("b", "U8", "[4]", "[3,7]")}), 7),
            "m.safetensors: tensor b: data_offsets [3, 7] overlap tensor a, which ends at 4");
  EXPECT_EQ(error_of_header(header({entry("a", "U8", "[4]", "[0,4]"), entry("b", "U8", "[4]", "[0,4]")}), 4),
            "m.safetensors: tensor b: data_offsets [0, 4] overlap tensor a, which ends at 4");
  EXPECT_EQ(
      error_of_header(header({entry("a", "U8", "[4]", "[0,4]"), entry("b", "U8", "[4]", "[5,9]")}), 9),
      "m.safetensors: tensor b: data_offsets [5, 9], expected to begin at 4: the bytes between belong to no tensor");
  EXPECT_THAT(error_of_header(header({entry("a", "U8", "[4]", "[1,5]")}), 5), HasSubstr("expected to begin at 0"));
  EXPECT_THAT(error_of_header(header({entry("a", "U8", "[4]", "[0,4]"), entry("z", "U8", "[0]", "[2,2]")}), 4),
              HasSubstr("tensor z: data_offsets [2, 2] overlap tensor a"));
}

TEST(Safetensors, AShapeThatLiesAboutItsBytesIsRefused) {
  EXPECT_EQ(error_of_header(header({entry("w", "F32", "[2,3]", "[0,20]")}), 20),
            "m.safetensors: tensor w: data_offsets [0, 20] are 20 bytes, but F32 [2, 3] takes 24");
  EXPECT_THAT(error_of_header(header({entry("w", "BF16", "[]", "[0,4]")}), 4), HasSubstr("but BF16 [] takes 2"));
}

TEST(Safetensors, AShapeWhoseProductLeaves64BitsIsRefused) {
  for (const char* shape : {"[4294967296,4294967296]", "[9223372036854775807]", "[2305843009213693952]",
                            "[3037000500,3037000500,8]", "[0,4294967296,4294967296]", "[4294967296,4294967296,0]"})
    EXPECT_THAT(error_of_header(header({entry("w", "U8", shape, "[0,0]")})),
                HasSubstr("has no size: more than 64 bits"))
        << shape;
}

TEST(Safetensors, NumbersThatAreNoCountsAreRefused) {
  const auto shape = [](const char* value) { return error_of_header(header({entry("w", "U8", value, "[0,1]")}), 1); };
  const auto offsets = [](const char* value) { return error_of_header(header({entry("w", "U8", "[1]", value)}), 1); };
  EXPECT_EQ(shape("[-1]"), "m.safetensors: tensor w: shape: -1, expected 0 or more");
  EXPECT_EQ(shape("[1.0]"), "m.safetensors: tensor w: shape: number 1.0, expected an integer of 64 bits");
  EXPECT_EQ(shape("[18446744073709551617]"),
            "m.safetensors: tensor w: shape: number 18446744073709551617, expected an integer of 64 bits");
  EXPECT_EQ(shape("[\"1\"]"), "m.safetensors: tensor w: shape: string \"1\", expected an integer of 64 bits");
  EXPECT_EQ(shape("[true]"), "m.safetensors: tensor w: shape: true, expected an integer of 64 bits");
  EXPECT_EQ(shape("1"), "m.safetensors: tensor w: shape: integer 1, expected an array of integers");
  EXPECT_EQ(shape("{}"), "m.safetensors: tensor w: shape: an object, expected an array of integers");
  EXPECT_EQ(shape("null"), "m.safetensors: tensor w: shape: null, expected an array of integers");
  EXPECT_EQ(offsets("[-1,0]"), "m.safetensors: tensor w: data_offsets: -1, expected 0 or more");
  EXPECT_EQ(offsets("[0.0,1]"), "m.safetensors: tensor w: data_offsets: number 0.0, expected an integer of 64 bits");
  EXPECT_EQ(offsets("[0,1e0]"), "m.safetensors: tensor w: data_offsets: number 1.0, expected an integer of 64 bits");
  EXPECT_EQ(offsets("[0,18446744073709551615]"),
            "m.safetensors: tensor w: data_offsets: number 18446744073709551615, expected an integer of 64 bits");
  EXPECT_THAT(offsets("[0,9223372036854775807]"), HasSubstr("but the file holds 1 bytes of data"));
  EXPECT_EQ(offsets("[1,0]"), "m.safetensors: tensor w: data_offsets [1, 0]: the end is before the begin");
  EXPECT_EQ(offsets("[0]"), "m.safetensors: tensor w: data_offsets: 1 numbers, expected begin and end");
  EXPECT_EQ(offsets("[0,1,1]"), "m.safetensors: tensor w: data_offsets: more than 2 numbers");
}

TEST(Safetensors, EntriesWithMissingUnknownOrDoubleFieldsAreRefused) {
  EXPECT_EQ(error_of_header(R"({"w":{"dtype":"U8","shape":[0]}})"), "m.safetensors: tensor w: data_offsets is missing");
  EXPECT_EQ(error_of_header(R"({"w":{}})"), "m.safetensors: tensor w: dtype is missing");
  EXPECT_THAT(error_of_header(R"({"w":{"dtype":"U8","stride":[0]}})"), HasSubstr("tensor w: field stride is unknown"));
  EXPECT_EQ(error_of_header(R"({"w":{"dtype":"U8","dtype":"I8"}})"), "m.safetensors: tensor w: dtype appears twice");
  EXPECT_EQ(error_of_header(R"({"w":{"dtype":7}})"), "m.safetensors: tensor w: dtype: integer 7, expected a string");
  EXPECT_EQ(error_of_header(R"({"w":{"dtype":"F31"}})"), "m.safetensors: tensor w: dtype \"F31\" is unknown");
  EXPECT_EQ(error_of_header(R"({"w":{"dtype":"bf16"}})"), "m.safetensors: tensor w: dtype \"bf16\" is unknown");
}

TEST(Safetensors, MetadataMustBeStringsAndAppearOnce) {
  EXPECT_EQ(error_of_header(R"({"__metadata__":{"a":"b","c":"d"}})"), "no error");
  EXPECT_EQ(error_of_header(R"({"__metadata__":{"a":1}})"),
            "m.safetensors: header: __metadata__: integer 1, expected strings only");
  EXPECT_EQ(error_of_header(R"({"__metadata__":{"a":{}}})"),
            "m.safetensors: header: __metadata__: an object, expected strings only");
  EXPECT_EQ(error_of_header(R"({"__metadata__":{"a":"b","a":"c"}})"),
            "m.safetensors: header: __metadata__: a appears twice");
  EXPECT_EQ(error_of_header(R"({"__metadata__":{},"__metadata__":{}})"),
            "m.safetensors: header: __metadata__: appears twice");
}

TEST(Safetensors, EmptyTensorsAndNoTensorsAreLegal) {
  EXPECT_EQ(parse(file_of("{}")).size(), 0u);
  const auto t = parse(file_of(header({entry("full", "U8", "[4]", "[0,4]"), entry("e1", "F32", "[0,7]", "[0,0]"),
                                       entry("e2", "BF16", "[0]", "[4,4]")}),
                               4));
  ASSERT_EQ(t.size(), 3u);
  EXPECT_EQ(t[0].name, "e1");
  EXPECT_EQ(t[0].bytes, 0);
  EXPECT_EQ(t[2].name, "e2");
}

TEST(Safetensors, EveryDtypeHasItsSizeAndFourBitTypesNeedWholeBytes) {
  const std::pair<const char*, int> cases[] = {{"F64", 64},    {"I64", 64},    {"F32", 32},    {"I32", 32}, {"F16", 16},
                                               {"BF16", 16},   {"I16", 16},    {"I8", 8},      {"U8", 8},   {"BOOL", 8},
                                               {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F4", 4}};
  for (const auto& [dtype, bits] : cases) {
    const size_t bytes = static_cast<size_t>(6 * bits / 8);
    EXPECT_EQ(error_of_header(header({entry("w", dtype, "[2,3]", str("[0,", bytes, "]"))}), bytes), "no error")
        << dtype;
    EXPECT_NE(error_of_header(header({entry("w", dtype, "[2,3]", str("[0,", bytes + 1, "]"))}), bytes + 1), "no error")
        << dtype;
  }
  EXPECT_EQ(error_of_header(header({entry("w", "F4", "[3]", "[0,2]")}), 2),
            "m.safetensors: tensor w: F4 [3] has no size: more than 64 bits or no whole number of bytes");
}

TEST(Safetensors, AShapeOfEndlessRankIsRefused) {
  std::string shape = "[1";
  for (int i = 0; i < 32; ++i) shape += ",1";
  EXPECT_EQ(error_of_header(header({entry("w", "U8", shape + "]", "[0,1]")}), 1),
            "m.safetensors: tensor w: shape: more than 32 numbers");
}

}  // namespace
}  // namespace kdelta
