#include "actors/roles/replica_keeper.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/planes/replica/copies.hpp"
#include "core/hash.hpp"
#include "tests/actors/support/machine_probe.hpp"

namespace troupe::actors {
namespace {

using core::Errc;
using core::Rank;
using messages::CopiesHeld;
using messages::CopyReady;
using messages::ExchangeClosed;
using messages::LocalSaveOver;
using messages::RetrieveOver;
using messages::RoundRead;
using messages::RoundShared;
using messages::RoundWritten;
using messages::SaveOver;
using messages::SavePlanned;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const messages::Failure kNoSpace{true, Errc::io, "no space left"};
const messages::Failure kLost{true, Errc::peer_lost, "rank 6 died"};
const core::CopyName kName{{5}, core::hash64("1", 77)};

/// The works of type Kind among the effects.
template <class Kind>
std::vector<Kind> asked(const std::vector<Effect>& effects) {
  std::vector<Kind> found;
  for (const auto& work : performed<ReplicaWork>(effects)) {
    if (const auto* kind = std::get_if<Kind>(&work)) found.push_back(*kind);
  }
  return found;
}

/// Rank 2 of the clique 2, 6; two buffers, chunks of 10 bytes.
class Keeper : public testing::Test {
 protected:
  Keeper() { probe_.say(messages::ReplicaSeed{77}); }

  std::vector<Effect> announce(std::uint64_t sequence = 1) {
    return probe_.say(messages::SaveAnnounced{sequence, Rank{2}, {4}, 0, 0, "{}", "[1]", "[]"});
  }
  void copy() {
    announce();
    probe_.say(messages::CopyDirectoryMade{1, {}});
    probe_.say(messages::FilesDurable{1, Rank{2}, {8, 9}, {}});
    probe_.say(messages::CopySealed{1, 35, {}});
    ASSERT_EQ(machine_.state(), "copied");
  }
  std::vector<Effect> exchange() { return probe_.say(messages::ExchangeBegan{1, {35, 12}}); }
  std::vector<Effect> end(const messages::Failure& failure = {}) {
    return probe_.say(LocalSaveOver{1, {4}, 47, failure});
  }
  /// All rounds that are left, each well.
  void run_rounds(std::uint32_t first, std::uint64_t exchange = 1, std::uint32_t rounds = 4) {
    for (auto round = first; round < rounds; ++round) {
      probe_.say(RoundRead{exchange, round, round % 2, {}});
      probe_.say(RoundShared{exchange, round, round % 2, {}});
      last_ = probe_.say(RoundWritten{exchange, round, round % 2, {}});
    }
  }

  ReplicaKeeperMachine machine_{{Rank{2}, {{2}, {6}}, {0, 1, 2}, 10, 2, std::chrono::seconds(60)}};
  MachineProbe probe_{machine_};
  std::vector<Effect> last_;
};

TEST_F(Keeper, HasItsWriterWriteAllPiecesAndSealsThem) {
  const auto announced = announce();
  ASSERT_THAT(asked<MakeCopyDirectory>(announced), SizeIs(1));
  EXPECT_EQ(asked<MakeCopyDirectory>(announced).at(0).name, kName);
  EXPECT_EQ(machine_.state(), "copying");

  const auto made = probe_.say(messages::CopyDirectoryMade{1, {}});
  EXPECT_THAT(sent<SavePlanned>(made),
              ElementsAre(SavePlanned{1, unfinished_path_of(kName, {2}), {0, 1, 2}}));

  const auto durable = probe_.say(messages::FilesDurable{1, Rank{2}, {8, 9, 10}, {}});
  ASSERT_THAT(asked<SealCopy>(durable), SizeIs(1));
  EXPECT_EQ(asked<SealCopy>(durable).at(0).common, "[1]");
  EXPECT_THAT(asked<SealCopy>(durable).at(0).hashes, ElementsAre(8, 9, 10));

  const auto sealed = probe_.say(messages::CopySealed{1, 35, {}});
  EXPECT_THAT(sent<CopyReady>(sealed), ElementsAre(CopyReady{1, Rank{2}, {4}, 35, {}}));
}

TEST_F(Keeper, SaysSoWhenItsOwnCopyFails) {
  announce();
  EXPECT_THAT(sent<CopyReady>(probe_.say(messages::CopyDirectoryMade{1, kNoSpace})),
              ElementsAre(CopyReady{1, Rank{2}, {4}, 0, kNoSpace}));
  end(kNoSpace);
  probe_.say(messages::CopiesTidied{1});
  announce(2);
  EXPECT_THAT(sent<CopyReady>(probe_.say(messages::SaveFailed{2, Rank{2}, kNoSpace})), SizeIs(1));
}

TEST_F(Keeper, GivesUpItsOwnCopyAtTheDeadline) {
  announce();

  const auto ready = sent<CopyReady>(probe_.timer(0));

  ASSERT_THAT(ready, SizeIs(1));
  EXPECT_EQ(ready[0].failure.code, Errc::timeout);
  EXPECT_THAT(probe_.say(messages::CopySealed{1, 35, {}}), IsEmpty()) << "too late";
}

TEST_F(Keeper, SharesRoundsInOrderWithinItsBuffers) {
  copy();

  const auto begun = exchange();

  ASSERT_THAT(asked<OpenExchange>(begun), SizeIs(1));
  EXPECT_EQ(asked<OpenExchange>(begun).at(0).plan.rounds(), 4u);
  EXPECT_THAT(asked<ReadRound>(begun), SizeIs(2));
  EXPECT_THAT(asked<ShareRound>(probe_.say(RoundRead{1, 0, 0, {}})), SizeIs(1));
  EXPECT_THAT(asked<WriteRound>(probe_.say(RoundShared{1, 0, 0, {}})), SizeIs(1));
  const auto written = asked<ReadRound>(probe_.say(RoundWritten{1, 0, 0, {}}));
  ASSERT_THAT(written, SizeIs(1));
  EXPECT_EQ(written[0].round, 2u);
  EXPECT_EQ(written[0].credit, 0u);
  run_rounds(1);
  EXPECT_THAT(asked<CloseExchange>(last_), SizeIs(1));
  EXPECT_THAT(sent<CopiesHeld>(probe_.say(ExchangeClosed{1, {}})), ElementsAre(CopiesHeld{1, Rank{2}, {}}));
  EXPECT_EQ(machine_.state(), "held");
}

TEST_F(Keeper, TidiesThenTellsItsTrainerWhenTheSaveCounts) {
  copy();
  exchange();
  run_rounds(0);
  probe_.say(ExchangeClosed{1, {}});

  const auto over = end();

  EXPECT_THAT(sent<SaveOver>(over), SizeIs(1)) << "the writer's buckets are free";
  ASSERT_THAT(asked<TidyCopies>(over), SizeIs(1));
  EXPECT_EQ(asked<TidyCopies>(over).at(0).name, kName);
  EXPECT_THAT(sent<LocalSaveOver>(over), IsEmpty());
  EXPECT_THAT(sent<LocalSaveOver>(probe_.say(messages::CopiesTidied{1})), SizeIs(1));
  EXPECT_EQ(machine_.state(), "kept");
  EXPECT_THAT(end(), IsEmpty()) << "said twice";
}

TEST_F(Keeper, SharesOnDespiteUnreadableOrUnwritableParts) {
  copy();
  exchange();

  EXPECT_THAT(asked<ShareRound>(probe_.say(RoundRead{1, 0, 0, kNoSpace})), SizeIs(1));
  probe_.say(RoundShared{1, 0, 0, {}});
  EXPECT_THAT(asked<ReadRound>(probe_.say(RoundWritten{1, 0, 0, {true, Errc::io, "later"}})), SizeIs(1));
  run_rounds(1);

  EXPECT_THAT(sent<CopiesHeld>(probe_.say(ExchangeClosed{1, {}})),
              ElementsAre(CopiesHeld{1, Rank{2}, kNoSpace}));
}

TEST_F(Keeper, EndsAnExchangeEarlyOnlyWithItsGroup) {
  copy();
  exchange();
  probe_.say(RoundRead{1, 0, 0, {}});

  EXPECT_THAT(asked<CloseExchange>(probe_.say(RoundShared{1, 0, 0, kLost})), IsEmpty())
      << "one is on its way";
  const auto read = probe_.say(RoundRead{1, 1, 1, {}});

  EXPECT_THAT(asked<ShareRound>(read), IsEmpty());
  EXPECT_THAT(asked<CloseExchange>(read), SizeIs(1));
  EXPECT_THAT(sent<CopiesHeld>(probe_.say(ExchangeClosed{1, {}})),
              ElementsAre(CopiesHeld{1, Rank{2}, kLost}));
}

TEST_F(Keeper, FinishesAnExchangeThoughTheSaveHasFailed) {
  copy();
  exchange();

  const auto over = end(kNoSpace);

  EXPECT_THAT(sent<SaveOver>(over), SizeIs(1));
  EXPECT_THAT(asked<DiscardCopies>(over), IsEmpty());
  EXPECT_THAT(asked<MakeCopyDirectory>(announce(2)), IsEmpty()) << "the next one waits";
  run_rounds(0);
  EXPECT_THAT(asked<DiscardCopies>(probe_.say(ExchangeClosed{1, {}})), SizeIs(1));
  const auto tidied = probe_.say(messages::CopiesTidied{1});
  EXPECT_THAT(sent<LocalSaveOver>(tidied), SizeIs(1));
  EXPECT_THAT(asked<MakeCopyDirectory>(tidied), SizeIs(1));
}

TEST_F(Keeper, DoesNotBeginASaveThatIsOverAlready) {
  copy();
  EXPECT_THAT(probe_.say(LocalSaveOver{2, {5}, 0, kNoSpace}), IsEmpty());
  end(kNoSpace);
  probe_.say(messages::CopiesTidied{1});

  const auto effects = announce(2);

  EXPECT_THAT(asked<MakeCopyDirectory>(effects), IsEmpty());
  EXPECT_THAT(sent<SaveOver>(effects), SizeIs(1));
  EXPECT_THAT(sent<LocalSaveOver>(effects), ElementsAre(LocalSaveOver{2, {5}, 0, kNoSpace}));
  EXPECT_THAT(asked<MakeCopyDirectory>(announce(3)), SizeIs(1));
}

TEST_F(Keeper, LetsUpdatesGoOnAfterDiskBoundSaves) {
  copy();
  end(kNoSpace);
  ASSERT_EQ(machine_.state(), "tidying");
  announce(2);

  const auto over = probe_.say(LocalSaveOver{2, {5}, 0, kNoSpace});

  EXPECT_THAT(sent<SaveOver>(over), SizeIs(1)) << "to the writer, which releases the buckets";
  EXPECT_THAT(sent<LocalSaveOver>(over), IsEmpty());
  EXPECT_THAT(sent<LocalSaveOver>(probe_.say(messages::CopiesTidied{1})), SizeIs(2));
}

TEST_F(Keeper, DoesNotWaitForeverForADiskThatTidies) {
  copy();
  end(kNoSpace);
  ASSERT_EQ(machine_.state(), "tidying");
  announce(2);

  const auto effects = probe_.timer(0);

  EXPECT_THAT(sent<LocalSaveOver>(effects), SizeIs(1));
  EXPECT_THAT(sent<CopyReady>(effects), IsEmpty());
  EXPECT_THAT(asked<MakeCopyDirectory>(effects), SizeIs(1));
  EXPECT_THAT(probe_.say(messages::CopiesTidied{1}), IsEmpty());
}

TEST_F(Keeper, BringsLostCopiesBackBeforeTheFirstSave) {
  const auto begun = probe_.say(messages::RetrieveBegan{kName, {{Rank{6}, Rank{2}, 12, {Rank{6}}}}});

  ASSERT_THAT(asked<OpenExchange>(begun), SizeIs(1));
  EXPECT_EQ(machine_.state(), "serving");
  run_rounds(0, 1, 2);
  EXPECT_THAT(sent<RetrieveOver>(probe_.say(ExchangeClosed{1, kNoSpace})),
              ElementsAre(RetrieveOver{kNoSpace}));
  EXPECT_THAT(asked<MakeCopyDirectory>(announce()), SizeIs(1));
  const auto refused = sent<RetrieveOver>(probe_.say(messages::RetrieveBegan{kName, {}}));
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_EQ(refused[0].failure.code, Errc::unavailable);
}

TEST_F(Keeper, RefusesAnExchangeForAnotherClique) {
  copy();

  const auto held = sent<CopiesHeld>(probe_.say(messages::ExchangeBegan{1, {1, 2, 3}}));

  ASSERT_THAT(held, SizeIs(1));
  EXPECT_THAT(held[0].failure.message, HasSubstr("3 copies"));
}

TEST_F(Keeper, IgnoresSavesAndExchangesThatAreNotItsOwn) {
  EXPECT_THAT(exchange(), IsEmpty());
  EXPECT_THAT(probe_.say(RoundRead{1, 0, 0, {}}), IsEmpty());
  EXPECT_THAT(probe_.say(messages::CopySealed{1, 35, {}}), IsEmpty());
  EXPECT_THAT(probe_.say(messages::CopiesTidied{1}), IsEmpty());
  EXPECT_THAT(probe_.timer(0), IsEmpty());
  copy();
  EXPECT_THAT(announce(1), IsEmpty());
  exchange();
  EXPECT_THAT(exchange(), IsEmpty());
  EXPECT_THAT(probe_.say(RoundRead{2, 0, 0, {}}), IsEmpty());
  EXPECT_THAT(probe_.say(ExchangeClosed{2, {}}), IsEmpty());
}

TEST(KeeperWithoutASeed, WaitsForItBeforeItsFirstSave) {
  ReplicaKeeperMachine machine({Rank{0}, {{0}}, {0}, 10, 2, std::chrono::seconds(60)});
  MachineProbe probe(machine);

  EXPECT_THAT(probe.say(messages::SaveAnnounced{1, Rank{0}, {4}, 0, 0, "", "", ""}), IsEmpty());

  EXPECT_THAT(asked<MakeCopyDirectory>(probe.say(messages::ReplicaSeed{1})), SizeIs(1));
}

TEST(KeeperAlone, HoldsAllOnceItHasItsOwn) {
  ReplicaKeeperMachine machine({Rank{5}, {{5}}, {0}, 10, 2, std::chrono::seconds(60)});
  MachineProbe probe(machine);
  probe.say(messages::ReplicaSeed{1});
  probe.say(messages::SaveAnnounced{1, Rank{5}, {4}, 0, 0, "", "", ""});
  probe.say(messages::CopySealed{1, 35, {}});

  EXPECT_THAT(asked<CloseExchange>(probe.say(messages::ExchangeBegan{1, {35}})), SizeIs(1));
  EXPECT_THAT(sent<CopiesHeld>(probe.say(ExchangeClosed{1, {}})), SizeIs(1));
}

}  // namespace
}  // namespace troupe::actors
