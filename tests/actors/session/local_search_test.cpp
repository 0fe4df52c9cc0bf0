#include "actors/session/local_search.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

using core::Rank;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr core::CopyName kOld{{1}, 11};
constexpr core::CopyName kNew{{2}, 0xfedcba9876543210};

FoundCopies holding(std::initializer_list<std::pair<core::CopyName, int>> copies) {
  FoundCopies found;
  for (const auto& [name, owner] : copies) found.held.push_back({name, Rank{owner}, 100});
  return found;
}

TEST(Holdings, ComeBackFromTheirText) {
  auto found = holding({{kOld, 0}, {kNew, 3}});
  found.held[1].bytes = 0xffffffffffffffff;
  found.passed_over = {"saved by 4 ranks"};

  const auto parsed = parse_holdings(text_of(found).value());

  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->held, found.held);
  EXPECT_EQ(parsed->passed_over, found.passed_over);
}

TEST(Choices, ComeBackFromTheirText) {
  RestoreChoice local;
  local.local = kNew;
  local.transfers = {{Rank{0}, Rank{3}, 5000000000, {Rank{0}, Rank{1}}}, {Rank{1}, Rank{1}, 1, {}}};
  local.notes = {"a", "b"};
  RestoreChoice checkpoint;
  checkpoint.checkpoint = "step_00000007";

  for (const auto& choice : {local, checkpoint, RestoreChoice{}})
    EXPECT_EQ(parse_choice(text_of(choice).value()).value(), choice);
}

TEST(Choices, ThatAreAlteredAreRefused) {
  for (const char* text : {"", "[]", "{}", R"(["",[],[]])", R"(["",[1],[],[]])", R"(["",[1,"x"],[],[]])",
                           R"([7,[],[],[]])", R"(["",[],[[1,2]],[]])", R"(["",[],[],[],[]])"}) {
    EXPECT_FALSE(parse_choice(text)) << text;
  }
  for (const char* text :
       {"[]", R"([[[1,"a",2]],[]])", R"([[[1,"a",2,"3",4]],[]])", R"([[],[7]])", R"([[],[],[]])"})
    EXPECT_FALSE(parse_holdings(text)) << text;
}

class Search : public testing::Test {
 protected:
  void hear(std::vector<FoundCopies> found) { search_.hear(std::move(found)); }
  LocalSearch search_{{{{0}, {1}}, {{2}}}};
};

TEST_F(Search, ProposesTheNewestWithWhatBringsLostCopiesBack) {
  hear({holding({{kNew, 0}, {kNew, 1}}), {}, holding({{kNew, 2}})});

  const auto choice = search_.propose();

  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->local, kNew);
  EXPECT_THAT(choice->transfers, ElementsAre(core::CopyTransfer{Rank{0}, Rank{0}, 100, {Rank{1}}},
                                             core::CopyTransfer{Rank{1}, Rank{0}, 100, {Rank{1}}}));
  EXPECT_THAT(search_.take_notes(), IsEmpty());
}

TEST_F(Search, ProposesASaveAgainOnlyWithOtherCopies) {
  const auto all = [] {
    return std::vector{holding({{kNew, 0}, {kNew, 1}, {kOld, 0}, {kOld, 1}}), holding({{kNew, 0}, {kNew, 1}}),
                       holding({{kNew, 2}, {kOld, 2}})};
  };
  hear(all());
  search_.failed();
  auto fewer = all();
  fewer[0].held.erase(fewer[0].held.begin());

  hear(fewer);
  EXPECT_EQ(search_.best(), kNew) << "rank 1 holds another copy of 0";
  search_.failed();
  hear(fewer);

  EXPECT_EQ(search_.best(), kOld);
  search_.failed();
  hear(fewer);
  EXPECT_EQ(search_.best(), std::nullopt);
}

TEST_F(Search, SaysWhyNewerSavesAreNotUsedOnce) {
  auto all = std::vector{holding({{kNew, 0}}), FoundCopies{}, holding({{kNew, 2}})};
  all[1].passed_over = {"torn"};

  hear(all);
  EXPECT_EQ(search_.best(), std::nullopt);
  EXPECT_THAT(search_.take_notes(), ElementsAre(HasSubstr("holds no copy of rank 1"), "rank 1: torn"));
  hear(all);
  EXPECT_THAT(search_.take_notes(), IsEmpty());
}

TEST(SearchOfManyRanks, DoesNotSayTheSameOfAll) {
  LocalSearch search({});
  FoundCopies other;
  other.passed_over = {"saved by 4 ranks"};

  search.hear(std::vector<FoundCopies>(1000, other));

  EXPECT_THAT(search.take_notes(), SizeIs(8));
}

}  // namespace
}  // namespace troupe::actors
