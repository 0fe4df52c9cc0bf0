#include "actors/planes/checkpoint/scatter.hpp"

#include <algorithm>

#include "core/convert.hpp"
#include "core/errors.hpp"

namespace troupe::actors {

ShardScatter::ShardScatter(const core::LoadRead& read, std::span<const core::LoadTarget> targets,
                           std::span<const std::span<std::byte>> memory)
    : dtype_(read.tensor->dtype) {
  for (const auto& copy : read.copies) {
    const auto& target = targets[copy.target];
    copies_.push_back({core::copy_runs(read.shard->box, target.box, copy.region), 0, target.dtype,
                       memory[copy.target].data()});
  }
}

bool ShardScatter::wants_before(std::uint64_t end) const {
  const auto element = static_cast<std::int64_t>(end / core::size_of(dtype_));
  return std::any_of(copies_.begin(), copies_.end(), [element](const Copy& copy) {
    return copy.next < copy.runs.size() && copy.runs[copy.next].from < element;
  });
}

core::Result<void> ShardScatter::take(std::uint64_t begin, std::span<const std::byte> bytes, Upload* upload) {
  const auto width = core::size_of(dtype_);
  const auto first = static_cast<std::int64_t>(begin / width);
  const auto end = static_cast<std::int64_t>((begin + bytes.size()) / width);
  for (auto& copy : copies_) TRY(carry_out(copy, first, end, bytes.data(), upload));
  return {};
}

/// The runs inside the elements [begin, end) of the shard, which lie at `bytes`.
core::Result<void> ShardScatter::carry_out(Copy& copy, std::int64_t begin, std::int64_t end,
                                           const std::byte* bytes, Upload* upload) const {
  const auto from_width = core::size_of(dtype_);
  const auto to_width = core::size_of(copy.dtype);
  for (; copy.next < copy.runs.size(); ++copy.next) {
    const auto& run = copy.runs[copy.next];
    const auto first = std::max(run.from, begin);
    const auto last = std::min(run.from + run.elements, end);
    if (first < last) {
      const auto count = static_cast<std::size_t>(last - first);
      const auto* from = bytes + static_cast<std::size_t>(first - begin) * from_width;
      auto* to = copy.memory + static_cast<std::size_t>(run.to + first - run.from) * to_width;
      if (upload == nullptr) {
        core::convert_elements(dtype_, from, copy.dtype, to, count);
      } else {
        TRY(upload->put(dtype_, from, copy.dtype, to, count));
      }
    }
    if (run.from + run.elements > end) break;
  }
  return {};
}

std::span<std::byte> place_of_whole(const core::LoadRead& read, std::span<const core::LoadTarget> targets,
                                    std::span<const std::span<std::byte>> memory) {
  if (read.copies.size() != 1) return {};
  const auto& copy = read.copies.front();
  const auto& target = targets[copy.target];
  if (target.dtype != read.tensor->dtype) return {};
  const auto runs = core::copy_runs(read.shard->box, target.box, copy.region);
  if (runs.size() != 1 || runs[0].elements != read.shard->box.elements()) return {};
  const auto at = static_cast<std::size_t>(runs[0].to) * core::size_of(target.dtype);
  return memory[copy.target].subspan(at, read.shard->bytes());
}

std::vector<StraightRun> straight_runs(const core::LoadRead& read, std::span<const core::LoadTarget> targets,
                                       std::span<const std::span<std::byte>> memory) {
  constexpr std::uint64_t kShortest = std::uint64_t{256} << 10;
  const auto width = core::size_of(read.tensor->dtype);
  std::vector<StraightRun> straight;
  for (const auto& copy : read.copies) {
    const auto& target = targets[copy.target];
    if (target.dtype != read.tensor->dtype) return {};
    for (const auto& run : core::copy_runs(read.shard->box, target.box, copy.region)) {
      const auto bytes = static_cast<std::uint64_t>(run.elements) * width;
      if (bytes < kShortest) return {};
      straight.push_back({static_cast<std::uint64_t>(run.from) * width,
                          memory[copy.target].subspan(static_cast<std::size_t>(run.to) * width, bytes)});
    }
  }
  return straight;
}

}  // namespace troupe::actors
