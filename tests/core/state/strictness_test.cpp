#include "core/state/strictness.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace troupe::core {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Requests = std::vector<KeySet>;

/// Each rank has a set of its own.
KeyRequests of_each(const Requests& requests) {
  KeyRequests all;
  for (const auto& request : requests) {
    all.of_ranks.push_back({all.sets.size()});
    all.sets.push_back(request);
  }
  return all;
}

const KeySet kCheckpoint{"ObjA", "ObjB", "TenA", "TenB", "TenC", "common_state"};

/// Rank 0 holds A, rank 1 holds B and C: together all of the checkpoint.
Requests exact() {
  return {{"TenA", "ObjA"}, {"TenB", "TenC", "ObjB"}};
}

Requests with_unexpected() {
  Requests requests = exact();
  requests[0].insert({"UnexpectedTenD", "UnexpectedObjD"});
  requests[1].insert("UnexpectedTenD");
  return requests;
}

Requests with_missing() {
  Requests requests = exact();
  requests[0].erase("TenA");
  requests[1].erase("ObjB");
  return requests;
}

Requests with_both() {
  Requests requests = with_unexpected();
  requests[0].erase("TenA");
  requests[1].erase("ObjB");
  return requests;
}

enum class Report { none, warning, error };

/// A row of the table: what a mode does about unexpected and about missing keys.
struct Mode {
  std::string name;
  bool drops = true;
  Report unexpected = Report::none;
  Report missing = Report::none;
  bool returns_unexpected = false;
  bool returns_missing = false;

  friend std::ostream& operator<<(std::ostream& out, const Mode& of) { return out << of.name; }
};

class StrictnessMode : public testing::TestWithParam<Mode> {
 protected:
  StrictnessVerdict judge(const Requests& requests) const {
    return judge_keys(strictness_from_name(GetParam().name).value(), of_each(requests), kCheckpoint);
  }

  /// The text of a verdict that reports as it should, where `reports` are those of the sets that are not
  /// empty.
  static std::string text(const StrictnessVerdict& verdict, const std::vector<Report>& reports) {
    const bool warns = std::count(reports.begin(), reports.end(), Report::warning) > 0;
    const bool fails = std::count(reports.begin(), reports.end(), Report::error) > 0;
    EXPECT_EQ(verdict.warning.has_value(), warns);
    EXPECT_EQ(verdict.error.has_value(), fails);
    return verdict.error ? verdict.error->message : verdict.warning.value_or("");
  }
};

// Covers stored-16, strict-1.
TEST_P(StrictnessMode, AnExactRequestGoesThrough) {
  const auto verdict = judge(exact());

  EXPECT_EQ(verdict, (StrictnessVerdict{.dropped = Requests(2), .unexpected = Requests(2)}));
}

// Covers stored-16, strict-3, strict-4.
TEST_P(StrictnessMode, UnexpectedKeys) {
  const Mode& mode = GetParam();
  const Requests unexpected{{"UnexpectedTenD", "UnexpectedObjD"}, {"UnexpectedTenD"}};

  const auto verdict = judge(with_unexpected());

  EXPECT_EQ(verdict.dropped, mode.drops ? unexpected : Requests(2));
  EXPECT_EQ(verdict.unexpected, mode.returns_unexpected ? unexpected : Requests(2));
  EXPECT_TRUE(verdict.missing.empty());
  const std::string message = text(verdict, {mode.unexpected});
  EXPECT_THAT(message, Not(HasSubstr("Missing keys")));
  if (mode.unexpected != Report::none) {
    EXPECT_THAT(message,
                AllOf(HasSubstr("Unexpected keys"), HasSubstr("UnexpectedObjD, UnexpectedTenD on rank(s) 0"),
                      HasSubstr("UnexpectedTenD on rank(s) 1")));
  }
}

// Covers stored-16, strict-2.
TEST_P(StrictnessMode, MissingKeys) {
  const Mode& mode = GetParam();

  const auto verdict = judge(with_missing());

  EXPECT_EQ(verdict.dropped, Requests(2));
  EXPECT_EQ(verdict.unexpected, Requests(2));
  EXPECT_EQ(verdict.missing, mode.returns_missing ? (KeySet{"TenA", "ObjB"}) : KeySet{});
  const std::string message = text(verdict, {mode.missing});
  EXPECT_THAT(message, Not(HasSubstr("Unexpected keys")));
  EXPECT_EQ(message.find("Missing keys") != std::string::npos, mode.missing != Report::none);
  EXPECT_EQ(message.find("ObjB, TenA") != std::string::npos, mode.missing != Report::none);
}

// Covers strict-5.
TEST_P(StrictnessMode, UnexpectedAndMissingKeys) {
  const Mode& mode = GetParam();

  const auto verdict = judge(with_both());

  const std::string message = text(verdict, {mode.unexpected, mode.missing});
  EXPECT_EQ(message.find("Unexpected keys") != std::string::npos, mode.unexpected != Report::none);
  EXPECT_EQ(message.find("Missing keys") != std::string::npos, mode.missing != Report::none);
  EXPECT_EQ(verdict.missing.empty(), !mode.returns_missing);
  EXPECT_EQ(verdict.dropped[1].contains("UnexpectedTenD"), mode.drops);
}

INSTANTIATE_TEST_SUITE_P(
    All, StrictnessMode,
    testing::Values(Mode{.name = "assume_ok_unexpected", .drops = false},
                    Mode{.name = "log_unexpected", .unexpected = Report::warning},
                    Mode{.name = "log_all", .unexpected = Report::warning, .missing = Report::warning},
                    Mode{.name = "raise_unexpected", .unexpected = Report::error},
                    Mode{.name = "raise_all", .unexpected = Report::error, .missing = Report::error},
                    Mode{.name = "return_unexpected", .returns_unexpected = true},
                    Mode{.name = "return_all", .returns_unexpected = true, .returns_missing = true},
                    Mode{.name = "ignore_all"}),
    testing::PrintToStringParamName());

TEST(Strictness, UnknownNamesAreRefusedWithTheKnownOnes) {
  const auto result = strictness_from_name("raise_some");

  EXPECT_EQ(result.error().code, Errc::invalid_argument);
  EXPECT_THAT(result.error().message, AllOf(HasSubstr("raise_some"), HasSubstr("ignore_all")));
  EXPECT_EQ(name_of(Strictness::return_all), "return_all");
}

// Covers strict-5.
TEST(Strictness, NestedNamesAreNamedInFull) {
  const Requests requests{{"UnexpectedNested.UnexpectedTenF", "NestedEmpty.UnexpectedObjH", "TenA"}};

  const auto verdict = judge_keys(Strictness::raise_all, of_each(requests), {"TenA", "TenB"});

  EXPECT_THAT(verdict.error.value().message,
              AllOf(HasSubstr("UnexpectedNested.UnexpectedTenF"), HasSubstr("NestedEmpty.UnexpectedObjH"),
                    HasSubstr("Missing keys (in the checkpoint, but requested by no rank): TenB.")));
}

TEST(Strictness, RanksWithTheSameUnexpectedKeysShareALine) {
  Requests requests(6, {"TenA", "TenX"});
  requests[4] = {"TenA"};

  const auto verdict = judge_keys(Strictness::log_all, of_each(requests), {"TenA"});

  EXPECT_EQ(verdict.warning,
            "Unexpected keys (requested, but not in the checkpoint): TenX on rank(s) 0-3, 5");
}

TEST(Strictness, RanksSharingASetAreNamedWithOwnKeys) {
  KeyRequests requests;
  requests.sets = {{"TenA", "TenX"}, {"TenB", "TenY"}, {}, {"OwnZ"}};
  requests.of_ranks = {{0, 2}, {1, 3}, {0, 3}, {1, 2}, {0, 2}};

  const auto verdict = judge_keys(Strictness::log_unexpected, requests, {"TenA", "TenB"});

  EXPECT_EQ(verdict.warning,
            "Unexpected keys (requested, but not in the checkpoint): OwnZ, TenX on rank(s) 2; OwnZ, TenY on "
            "rank(s) 1; TenX on rank(s) 0, 4; and others on other ranks, 4 sets in all");
  EXPECT_EQ(verdict.dropped, (std::vector<KeySet>{{"TenX"}, {"TenY"}, {}, {"OwnZ"}}));
  EXPECT_EQ(requests.keys_of_rank(2, verdict.dropped), (KeySet{"OwnZ", "TenX"}));
}

TEST(Strictness, AMessageNamesAHundredKeys) {
  KeySet checkpoint;
  for (int i = 0; i < 250; ++i) checkpoint.insert("key" + std::to_string(1000 + i));

  const auto verdict = judge_keys(Strictness::log_all, of_each(Requests(1)), checkpoint);

  EXPECT_THAT(verdict.warning.value(), AllOf(HasSubstr("key1004 and 245 more"), Not(HasSubstr("key1005"))));
}

}  // namespace
}  // namespace troupe::core
