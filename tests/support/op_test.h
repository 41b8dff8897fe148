// Runs a test once per compiled variant of an op that this machine can execute.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "kdelta/core/error.h"
#include "kdelta/core/isa.h"
#include "tests/support/support.h"

namespace kdelta::test {

// Parameter: the variant's name.
class VariantTest : public testing::TestWithParam<std::string> {};

// The same with an Exec that runs this variant of one op; force() sets others up alike.
class OpVariantTest : public VariantTest {
 protected:
  explicit OpVariantTest(const char* op) : op_(op) { force(ex); }
  void force(TestExec& other) const { other.force(op_, GetParam()); }
  TestExec ex;

 private:
  const char* op_;
};

// Names of the CPU rows whose instruction set is here. On an older processor the missing ones do not appear as skipped
// tests; ctest lists what ran.
template <class Rows>
std::vector<std::string> runnable(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows)
    if (row.needs.device == DeviceKind::cpu && row.needs.isa <= detect_isa()) names.push_back(row.name);
  return names;
}

// The message of the Error that f throws, or "no error".
template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace kdelta::test

#define KDELTA_INSTANTIATE_VARIANTS(Suite, rows)                                               \
  INSTANTIATE_TEST_SUITE_P(Variants, Suite, testing::ValuesIn(::kdelta::test::runnable(rows)), \
                           [](const auto& kd_info) { return kd_info.param; })
