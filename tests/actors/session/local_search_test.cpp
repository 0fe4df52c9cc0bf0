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

Holding holding(std::initializer_list<std::pair<core::CopyName, int>> copies) {
  Holding holding;
  for (const auto& [name, owner] : copies) holding.found.held.push_back({name, Rank{owner}, 100, {3}, 0, {}});
  return holding;
}

TEST(Holdings, ComeBackFromTheirText) {
  auto holds = holding({{kOld, 0}, {kNew, 3}});
  holds.found.held[1].bytes = 0xffffffffffffffff;
  holds.found.held[1].layout = 0xfffffffffffffffe;
  holds.found.held[1].beside = Rank{0};
  holds.found.passed_over = {"torn"};
  holds.wants = 0xfffffffffffffffd;

  const auto parsed = parse_holding(text_of(holds).value());

  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->found.held, holds.found.held);
  EXPECT_EQ(parsed->found.passed_over, holds.found.passed_over);
  EXPECT_EQ(parsed->wants, holds.wants);
}

TEST(Choices, ComeBackFromTheirText) {
  RestoreChoice local;
  local.local = kNew;
  local.transfers = {{Rank{0}, Rank{3}, 5000000000, {Rank{0}, Rank{1}}}, {Rank{1}, Rank{1}, 1, {}}};
  local.notes = {"a", "b"};
  RestoreChoice gathered;
  gathered.local = kOld;
  gathered.givers = {{{1}, {2}, 0xfffffffffffffffe}, {{0}, {0}, 1}};
  gathered.wants = {3, 0xfffffffffffffffe};
  RestoreChoice checkpoint;
  checkpoint.checkpoint = "step_00000007";

  for (const auto& choice : {local, gathered, checkpoint, RestoreChoice{}})
    EXPECT_EQ(parse_choice(text_of(choice).value()).value(), choice);
}

TEST(Choices, ThatAreAlteredAreRefused) {
  for (const char* text :
       {"", "[]", "{}", R"(["",[],[],[],[]])", R"(["",[1],[],[],[],[]])", R"(["",[1,"x"],[],[],[],[]])",
        R"([7,[],[],[],[],[]])", R"(["",[],[[1,2]],[],[],[]])", R"(["",[],[],[[1]],[],[]])",
        R"(["",[],[],[],[1],[]])", R"(["",[],[],[],[],[],[]])"}) {
    EXPECT_FALSE(parse_choice(text)) << text;
  }
  for (const char* text : {"[]", R"([[[1,"a",2]],[],"0"])", R"([[[1,"a",2,"3",4,"5",6,7]],[],"0"])",
                           R"([[],[7],"0"])", R"([[],[]])", R"([[],[],"0",[]])"})
    EXPECT_FALSE(parse_holding(text)) << text;
}

class Search : public testing::Test {
 protected:
  void hear(std::vector<Holding> all) { search_.hear(std::move(all)); }
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
  fewer[0].found.held.erase(fewer[0].found.held.begin());

  hear(fewer);
  EXPECT_EQ(search_.best(), kNew) << "rank 1 holds another copy of 0";
  search_.failed();
  hear(fewer);

  EXPECT_EQ(search_.best(), kOld);
  search_.failed();
  hear(fewer);
  EXPECT_EQ(search_.best(), std::nullopt);
}

TEST_F(Search, ProposesGiversWhereCopiesDoNotFit) {
  auto all = std::vector{holding({{kNew, 0}, {kNew, 1}}), holding({{kNew, 0}}), holding({{kNew, 2}})};
  all[2].wants = 7;

  hear(all);
  const auto choice = search_.propose();

  ASSERT_TRUE(choice);
  EXPECT_THAT(choice->transfers, IsEmpty());
  EXPECT_THAT(choice->givers, ElementsAre(core::CopyGiver{{0}, {0}, 0}, core::CopyGiver{{0}, {0}, 0},
                                          core::CopyGiver{{2}, {2}, 0}));
  EXPECT_THAT(choice->wants, ElementsAre(0, 0, 7));
}

TEST_F(Search, SaysWhyNewerSavesAreNotUsedOnce) {
  auto all = std::vector{holding({{kNew, 0}}), Holding{}, holding({{kNew, 2}})};
  all[1].found.passed_over = {"torn"};

  hear(all);
  EXPECT_EQ(search_.best(), std::nullopt);
  EXPECT_THAT(search_.take_notes(), ElementsAre(HasSubstr("holds no copy of rank 1"), "rank 1: torn"));
  hear(all);
  EXPECT_THAT(search_.take_notes(), IsEmpty());
}

TEST(SearchOfManyRanks, DoesNotSayTheSameOfAll) {
  LocalSearch search({});
  Holding other;
  other.found.passed_over = {"torn"};

  search.hear(std::vector<Holding>(1000, other));

  EXPECT_THAT(search.take_notes(), SizeIs(8));
}

}  // namespace
}  // namespace troupe::actors
