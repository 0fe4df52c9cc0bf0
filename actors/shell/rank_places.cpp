#include "actors/shell/rank_places.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <sstream>

#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::actors {

namespace {

using core::Errc;
using core::Result;
using Members = std::vector<std::size_t>;  ///< ranks in ascending order

std::string names_of(const Members& members) {
  constexpr std::size_t kMost = 16;
  const auto shown = static_cast<std::ptrdiff_t>(std::min(kMost, members.size()));
  return fmt::format("{} {}{}", members.size() == 1 ? "rank" : "ranks",
                     fmt::join(members.begin(), members.begin() + shown, ", "),
                     members.size() > kMost ? fmt::format(" and {} more", members.size() - kMost) : "");
}

core::Error misplaced(const RankPlace& place, const Members& alike) {
  const std::string said =
      place.source.empty()
          ? fmt::format(
                "neither LOCAL_RANK and LOCAL_WORLD_SIZE nor a variable of its launcher says which "
                "ranks share the host of rank {}, which would be all {}",
                alike.front(), place.local_world)
          : fmt::format("{} say that rank {} is one of {} ranks of its host", place.source, alike.front(),
                        place.local_world);
  return {Errc::mismatch,
          fmt::format("{}, but on {} there {} {}; set LOCAL_RANK and LOCAL_WORLD_SIZE (with RANK and "
                      "WORLD_SIZE) for every rank, or start all ranks with one launcher",
                      said, place.host_name, alike.size() == 1 ? "is" : "are", names_of(alike))};
}

core::Error doubled(const RankPlace& place, std::size_t rank, const Members& alike) {
  return {Errc::mismatch,
          fmt::format("rank {} is said to have local rank {} of {} on {} (by {}), and so is another of {}; "
                      "each rank of a host has a local rank of its own",
                      rank, place.local_rank, place.local_world, place.host_name,
                      place.source.empty() ? "nothing but RANK" : place.source, names_of(alike))};
}

/// `alike` are on one host, and all were told the same number of ranks there.
std::optional<core::Error> check(const std::vector<RankPlace>& places, const Members& alike) {
  const RankPlace& first = places[alike.front()];
  const auto local_world = static_cast<std::size_t>(std::max(first.local_world, 1));
  if (alike.size() % local_world != 0) return misplaced(first, alike);
  std::map<int, std::size_t> counts;
  for (const auto rank : alike) ++counts[places[rank].local_rank];
  // torchrun's --virtual-local-rank: every rank sees a GPU of its own, and is local rank 0.
  if (counts.size() == 1 && counts.begin()->first == 0) return std::nullopt;
  for (const auto rank : alike) {
    if (counts[places[rank].local_rank] * local_world > alike.size())
      return doubled(places[rank], rank, alike);
  }
  return std::nullopt;
}

}  // namespace

std::string to_line(const RankPlace& place) {
  return fmt::format("{} {} {} {} {}", place.host, place.local_rank, place.local_world, place.host_name,
                     place.source);
}

Result<RankPlace> place_from_line(std::string_view line) {
  RankPlace place;
  std::istringstream text{std::string(line)};
  text >> place.host >> place.local_rank >> place.local_world >> place.host_name;
  if (!text)
    return core::fail(Errc::corrupt,
                      "expected where a rank runs, found {}; start all ranks with the same build",
                      core::quoted_excerpt(line));
  std::getline(text >> std::ws, place.source);
  return place;
}

std::optional<core::Error> misplaced_rank(const std::vector<RankPlace>& places) {
  std::map<std::pair<std::uint64_t, int>, Members> alike;
  for (std::size_t rank = 0; rank < places.size(); ++rank)
    alike[{places[rank].host, places[rank].local_world}].push_back(rank);
  for (const RankPlace& place : places) {
    if (auto error = check(places, alike[{place.host, place.local_world}])) return error;
  }
  return std::nullopt;
}

/// Rank 0, where the store is, reads all, and tells all what it found.
Result<void> PlacedBackend::compare(const gpu::GroupOptions& options) {
  const auto key_of = [&](std::string_view what) {
    return fmt::format("{}/{}/place/{}", options.job, options.epoch.value, what);
  };
  TRY(rendezvous_.set(key_of(std::to_string(options.self.value)), to_line(own_)));
  if (options.self.value == 0) {
    std::vector<RankPlace> places;
    for (std::int32_t rank = 0; rank < world_.value; ++rank) {
      const auto line = TRY(rendezvous_.get(key_of(std::to_string(rank)), options.deadline));
      places.push_back(TRY(place_from_line(line)));
    }
    const auto error = misplaced_rank(places);
    TRY(rendezvous_.set(key_of("error"), error ? error->message : ""));
  }
  const auto error = TRY(rendezvous_.get(key_of("error"), options.deadline));
  if (error.empty()) return {};
  return core::fail(Errc::mismatch, "{}", error);
}

Result<std::unique_ptr<gpu::Group>> PlacedBackend::create_group(gpu::GroupOptions options) {
  if (!std::exchange(is_compared_, true)) TRY(compare(options));
  return backend_->create_group(std::move(options));
}

}  // namespace troupe::actors
