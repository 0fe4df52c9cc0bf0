#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace troupe::actors {

/// Bugs that a simulated job may have on purpose, each at a seam of the simulation, to show that the
/// invariant whose name stands behind it is checked.
enum class PlantedBug : std::uint8_t {
  none,
  two_views,       ///< S1: a launcher tells its ranks another order of ranks
  same_epoch,      ///< S1: a launcher that goes on with a job begins with an epoch that may have been told
  foreign_words,   ///< S2: ranks take what was said in another epoch
  missing_part,    ///< S3: ranks go on though nobody has a part of the state
  double_update,   ///< S4: a rank that finishes a step for others has made it already
  goes_back,       ///< S5: ranks go on from the oldest state that they have
  empty_spare,     ///< S6: a rank that comes anew is not given the state
  order_of_ranks,  ///< S7: lanes are added in the order of ranks
  old_deal,        ///< S8: lanes are dealt over as many ranks as there were before
  early_commit,    ///< S9: a save is committed before all ranks have written
  unchecked_load,  ///< S9: a checkpoint is loaded whatever its hashes say
  prunes_all,      ///< S10: retention keeps no checkpoint
  live_snapshot,   ///< S11: a save takes the state as it is when it is written
  ghost_commits,   ///< S14: a save is committed whatever epoch has begun since
  blames_next,     ///< S16: a launcher says that another process than the one that failed has ended
  says_ended,      ///< NA-1: a launcher says that a process has ended once it was told to
  deaf_launcher,   ///< L2: a launcher that has lost that of node 0 does not look for it
  forgets_saves,   ///< L6: ranks save no more once their epoch is not the first
  shuns_late,      ///< L7: launchers that come once the job has begun are refused
  hasty_launcher,  ///< L8: a rank that computes is believed to hang
  keeps_ranks,     ///< R1: the ranks of a node that is cut off are not stopped
  never_gives_up,  ///< R3: what ends is started again, however often it was
  old_numbers,     ///< N1: nodes that come back have the numbers that they had, whoever else comes
};
inline constexpr std::size_t kPlantedBugs = 24;

struct PlantedName {
  PlantedBug bug{};
  std::string_view name;
  std::string_view invariant;
};
inline constexpr std::array<PlantedName, kPlantedBugs> kPlantedNames{{
    {PlantedBug::none, "none", ""},
    {PlantedBug::two_views, "two_views", "S1"},
    {PlantedBug::same_epoch, "same_epoch", "S1"},
    {PlantedBug::foreign_words, "foreign_words", "S2"},
    {PlantedBug::missing_part, "missing_part", "S3"},
    {PlantedBug::double_update, "double_update", "S4"},
    {PlantedBug::goes_back, "goes_back", "S5"},
    {PlantedBug::empty_spare, "empty_spare", "S6"},
    {PlantedBug::order_of_ranks, "order_of_ranks", "S7"},
    {PlantedBug::old_deal, "old_deal", "S8"},
    {PlantedBug::early_commit, "early_commit", "S9"},
    {PlantedBug::unchecked_load, "unchecked_load", "S9"},
    {PlantedBug::prunes_all, "prunes_all", "S10"},
    {PlantedBug::live_snapshot, "live_snapshot", "S11"},
    {PlantedBug::ghost_commits, "ghost_commits", "S14"},
    {PlantedBug::blames_next, "blames_next", "S16"},
    {PlantedBug::says_ended, "says_ended", "NA-1"},
    {PlantedBug::deaf_launcher, "deaf_launcher", "L2"},
    {PlantedBug::forgets_saves, "forgets_saves", "L6"},
    {PlantedBug::shuns_late, "shuns_late", "L7"},
    {PlantedBug::hasty_launcher, "hasty_launcher", "L8"},
    {PlantedBug::keeps_ranks, "keeps_ranks", "R1"},
    {PlantedBug::never_gives_up, "never_gives_up", "R3"},
    {PlantedBug::old_numbers, "old_numbers", "N1"},
}};

}  // namespace troupe::actors
