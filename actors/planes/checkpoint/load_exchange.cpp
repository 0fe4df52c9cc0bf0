#include "actors/planes/checkpoint/load_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "core/errors.hpp"

namespace troupe::actors {

namespace {

/// A multiple of every element's size.
constexpr std::uint64_t kAlignment = 16;

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

core::LoadRead nowhere(const core::SharedRead& read) {
  return {read.tensor, read.shard, {}};
}

core::Result<void> fetch(std::span<const std::byte> from, std::byte* to, Upload& upload) {
  while (!from.empty()) {
    const auto part = from.first(std::min(from.size(), upload.window().size()));
    const auto fetched = TRY(upload.fetch(part));
    std::memcpy(to, fetched.data(), fetched.size());
    from = from.subspan(part.size());
    to += part.size();
  }
  return {};
}

bool is_shared(const core::SharedRead& read) {
  return read.for_all || read.parts.size() > 1 || read.parts.front().rank != read.reader;
}

}  // namespace

core::Result<LoadExchange> LoadExchange::create(const core::Manifest& manifest, core::SharedLoadPlan plan,
                                                core::Rank rank, core::WorldSize world, Wanted wanted,
                                                std::uint64_t exchange_bytes) {
  LoadExchange exchange;
  exchange.manifest_ = &manifest;
  exchange.plan_ = std::move(plan);
  exchange.rank_ = static_cast<std::uint32_t>(rank.value);
  exchange.world_ = static_cast<std::uint32_t>(world.value);
  exchange.wanted_ = std::move(wanted);
  exchange.window_ = exchange_bytes;
  TRY(exchange.plan_own(manifest));
  exchange.plan_streams();
  return exchange;
}

core::Result<void> LoadExchange::plan_own(const core::Manifest& manifest) {
  own_ = TRY(core::plan_load(manifest, wanted_.targets));
  for (std::size_t i = 0; i < own_.reads.size(); ++i) own_reads_.emplace(own_.reads[i].shard, i);
  return {};
}

void LoadExchange::Stream::add(const Piece& piece) {
  pieces.push_back(piece);
  starts.push_back(bytes);
  bytes += aligned(piece.end - piece.begin);
}

void LoadExchange::plan_streams() {
  outgoing_.resize(world_);
  incoming_.resize(world_);
  // Streams between others count too: all ranks go through the same number of rounds.
  std::vector<std::uint64_t> to_all(world_);
  Pairs to_one;
  for (std::size_t i = 0; i < plan_.reads.size(); ++i) {
    const auto& read = plan_.reads[i];
    if (!is_shared(read)) continue;
    auto give = [&](std::uint32_t to, const core::SharedRead::Part& part) {
      if (to == read.reader) return;
      if (read.reader == rank_) outgoing_[to].add({i, part.begin, part.end});
      if (to == rank_) incoming_[read.reader].add({i, part.begin, part.end});
    };
    if (read.for_all) {
      const auto& part = read.parts.front();
      to_all[read.reader] += aligned(part.end - part.begin);
      if (read.reader != rank_) give(rank_, part);
      for (std::uint32_t to = 0; read.reader == rank_ && to < world_; ++to) give(to, part);
      continue;
    }
    for (const auto& part : read.parts) {
      if (part.rank != read.reader) to_one[{read.reader, part.rank}] += aligned(part.end - part.begin);
      give(part.rank, part);
    }
  }
  plan_rounds(to_all, to_one);
}

/// Where one rank alone is given something, one other gives in each round: more at a time would reach it no
/// sooner, and so the bytes of a round are one range.
void LoadExchange::plan_rounds(const std::vector<std::uint64_t>& to_all, const Pairs& to_one) {
  auto longest = *std::max_element(to_all.begin(), to_all.end());  // 0: nothing is exchanged
  const bool is_for_one = longest == 0 && std::all_of(to_one.begin(), to_one.end(), [&](const auto& each) {
                            return each.first.second == to_one.begin()->first.second;
                          });
  for (const auto& [pair, bytes] : to_one) longest = std::max(longest, to_all[pair.first] + bytes);
  if (longest == 0) return;
  streams_at_once_ = is_for_one ? 1 : std::max(world_ - 1, 1U);
  window_ = std::max(window_ / streams_at_once_ / kAlignment * kAlignment, kAlignment);
  window_ = std::min(window_, std::max(longest, kAlignment));
  const auto rounds_for = [&](std::uint64_t bytes) { return (bytes + window_ - 1) / window_; };
  if (!is_for_one) {
    rounds_ = rounds_for(longest);
    return;
  }
  for (const auto& [pair, bytes] : to_one) {
    const auto [from, to] = pair;
    if (from == rank_) outgoing_[to].first_round = rounds_;
    if (to == rank_) incoming_[from].first_round = rounds_;
    rounds_ += rounds_for(bytes);
  }
}

LoadExchange::Section LoadExchange::section(const Stream& stream, std::uint64_t round) const {
  if (round < stream.first_round) return {};
  const auto begin = std::min((round - stream.first_round) * window_, stream.bytes);
  return {begin, std::min(window_, stream.bytes - begin)};
}

std::optional<LoadExchange::Piece> LoadExchange::only_piece(const std::vector<Stream>& streams,
                                                            std::uint64_t round) const {
  std::optional<Piece> only;
  for (const auto& stream : streams) {
    const auto moved = section(stream, round);
    if (moved.size == 0) continue;
    if (only) return std::nullopt;
    const auto after = std::upper_bound(stream.starts.begin(), stream.starts.end(), moved.begin);
    const auto index = static_cast<std::size_t>(after - stream.starts.begin()) - 1;
    const auto& piece = stream.pieces[index];
    const auto first = piece.begin + (moved.begin - stream.starts[index]);
    if (first + moved.size > piece.end) return std::nullopt;
    only = Piece{piece.read, first, first + moved.size};
  }
  return only;
}

core::Result<void> LoadExchange::read(Storage& storage, std::string_view name, const ReadOptions& options) {
  uploads_ = options.uploads;
  for (auto target : own_.zero) TRY(clear(wanted_.memory[target], uploads_));
  std::vector<ShardTask> tasks;
  std::vector<std::uint32_t> headers;
  std::set<std::uint32_t> seen;
  for (std::size_t i = 0; i < plan_.reads.size(); ++i) {
    const auto& read = plan_.reads[i];
    const bool is_first = seen.insert(read.shard->file).second;
    const bool is_mine = read.reader == rank_;
    if (is_mine && is_first) headers.push_back(read.shard->file);
    const auto own = own_reads_.find(read.shard);
    const bool is_wanted = own != own_reads_.end();
    if (!is_mine) {
      if (is_wanted) arriving_.try_emplace(i, own_.reads[own->second], wanted_.targets, wanted_.memory);
      continue;
    }
    // A plan may assign a rank what it does not want itself.
    const auto& wanted = is_wanted ? own_.reads[own->second] : unwanted_.emplace_back(nowhere(read));
    std::span<std::byte> whole;
    if (is_shared(read)) {
      auto place = uploads_ == nullptr ? place_of_whole(wanted, wanted_.targets, wanted_.memory)
                                       : std::span<std::byte>{};
      if (place.empty()) whole = place = kept_.emplace_back(read.shard->bytes());
      sources_[i] = place;
    }
    tasks.push_back({wanted, whole});
  }
  return read_shards(storage, name, *manifest_, tasks, headers, wanted_.targets, wanted_.memory, options);
}

core::Result<void> LoadExchange::take_from(const MemoryOf& memory_of, UploadPool* uploads, Source source) {
  uploads_ = uploads;
  gives_uploaded_ = source == Source::device;
  is_direct_ = source == Source::lasting;
  for (std::size_t i = 0; i < plan_.reads.size(); ++i) {
    const auto& read = plan_.reads[i];
    if (read.reader == rank_) sources_[i] = memory_of(*read.shard);
    const auto own = own_reads_.find(read.shard);
    if (own == own_reads_.end() || !memory_of(*read.shard).empty()) continue;
    const auto& arriving = own_.reads[own->second];
    arriving_.try_emplace(i, arriving, wanted_.targets, wanted_.memory);
    if (is_direct_) places_[i] = place_of_whole(arriving, wanted_.targets, wanted_.memory);
  }
  for (const auto& read : own_.reads) {
    const auto here = memory_of(*read.shard);
    ShardScatter scatter(read, wanted_.targets, wanted_.memory);
    TRY(take_whole(here, scatter));
  }
  return {};
}

/// All of a shard, or nothing.
core::Result<void> LoadExchange::take_whole(std::span<const std::byte> shard, ShardScatter& scatter) {
  if (shard.empty()) return {};
  if (uploads_ == nullptr) return scatter.take(0, shard, nullptr);
  const auto upload = uploads_->take();
  if (!gives_uploaded_) {
    TRY(scatter.take(0, shard, upload.get()));
    return upload->settle();
  }
  for (std::size_t begin = 0; begin < shard.size(); begin += upload->window().size()) {
    const auto count = std::min(shard.size() - begin, upload->window().size());
    TRY(scatter.take(begin, TRY(upload->fetch(shard.subspan(begin, count))), upload.get()));
    TRY(upload->settle());
  }
  return {};
}

std::vector<std::size_t> LoadExchange::counts(const std::vector<Stream>& streams, std::uint64_t round) const {
  std::vector<std::size_t> counts;
  for (const auto& stream : streams) counts.push_back(section(stream, round).size);
  return counts;
}

template <class Visit>
void LoadExchange::walk(std::vector<Stream>& streams, std::uint64_t round, std::size_t bytes,
                        const Visit& visit) const {
  std::size_t place = 0;
  for (auto& stream : streams) {
    for (auto rest = section(stream, round).size; rest > 0;) {
      const auto& piece = stream.pieces[stream.next];
      const auto size = piece.end - piece.begin;
      const auto count = std::min(rest, aligned(size) - stream.at);
      CHECK(count <= bytes - place, "a round has the bytes that were planned for it");
      visit(piece, piece.begin + stream.at, place, std::min(count, size - stream.at));
      place += count;
      rest -= count;
      stream.at += count;
      if (stream.at < size) continue;
      stream.next += 1;
      stream.at = 0;
    }
  }
  CHECK(place == bytes, "a round has the bytes that were planned for it");
}

core::Result<std::span<const std::byte>> LoadExchange::pack(std::span<std::byte> bytes) {
  const auto round = packed_++;
  auto upload = gives_uploaded_ ? uploads_->take() : UploadPool::Lease{};
  const auto only = is_direct_ ? only_piece(outgoing_, round) : std::nullopt;
  core::Result<void> packed;
  walk(outgoing_, round, bytes.size(),
       [&](const Piece& piece, std::uint64_t first, std::size_t at, std::size_t n) {
         const auto from = sources_.at(piece.read).subspan(first, n);
         if (only) return;
         if (!upload) {
           std::memcpy(bytes.data() + at, from.data(), n);
         } else if (packed) {
           packed = fetch(from, bytes.data() + at, *upload);
         }
       });
  TRY(std::move(packed));
  if (only) return sources_.at(only->read).subspan(only->begin, only->end - only->begin);
  return std::span<const std::byte>(bytes);
}

std::span<std::byte> LoadExchange::place_of(std::uint64_t round) const {
  const auto only = is_direct_ ? only_piece(incoming_, round) : std::nullopt;
  const auto place = only ? places_.find(only->read) : places_.end();
  if (place == places_.end() || place->second.empty()) return {};
  return place->second.subspan(only->begin, only->end - only->begin);
}

core::Result<void> LoadExchange::unpack(std::span<const std::byte> bytes) {
  const auto round = unpacked_++;
  const bool is_there = !bytes.empty() && place_of(round).data() == bytes.data();
  auto upload = uploads_ != nullptr ? uploads_->take() : UploadPool::Lease{};
  core::Result<void> taken;
  walk(incoming_, round, bytes.size(),
       [&](const Piece& piece, std::uint64_t first, std::size_t at, std::size_t n) {
         const auto scatter = arriving_.find(piece.read);
         if (taken && !is_there && scatter != arriving_.end())
           taken = scatter->second.take(first, bytes.subspan(at, n), upload.get());
       });
  TRY(std::move(taken));
  return upload ? upload->settle() : core::Result<void>{};
}

}  // namespace troupe::actors
