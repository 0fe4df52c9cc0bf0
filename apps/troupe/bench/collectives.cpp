#include "apps/troupe/bench/collectives.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "apps/command_line/say.hpp"
#include "apps/troupe/bench/children.hpp"
#include "apps/troupe/bench/plain_loopback.hpp"
#include "core/errors.hpp"
#include "gpu/collective/rendezvous_file.hpp"
#include "gpu/collective/shared_memory/shared_memory_backend.hpp"
#include "gpu/collective/tcp/tcp_backend.hpp"
#include "gpu/host/host_device.hpp"

namespace troupe::apps {
namespace {

using core::Errc;
using core::Result;

constexpr auto kDeadline = std::chrono::seconds(60);
constexpr std::array kKinds{gpu::OperationKind::all_reduce, gpu::OperationKind::reduce_scatter,
                            gpu::OperationKind::all_gather, gpu::OperationKind::broadcast,
                            gpu::OperationKind::all_to_all, gpu::OperationKind::barrier};

/// One rank's process: its device, buffers and a group of each back-end.
class Member {
 public:
  static Result<std::unique_ptr<Member>> create(gpu::Rendezvous& rendezvous, int index, int ranks,
                                                std::size_t bytes) {
    auto member = std::unique_ptr<Member>(new Member(rendezvous, index, ranks));
    member->device_ = TRY(gpu::open_host_device());
    member->input_ = TRY(member->device_->allocate(bytes));
    member->output_ = TRY(member->device_->allocate(bytes));
    member->stream_ = TRY(member->device_->create_stream({.name = "bench"}));
    TRY(member->add_group(std::make_unique<gpu::SharedMemoryBackend>(rendezvous)));
    TRY(member->add_group(TRY(gpu::TcpBackend::open(rendezvous, {}))));
    member->plain_ = TRY(PlainLoopback::connect(rendezvous, index, ranks));
    return member;
  }

  /// The back-ends, and the limit of the last.
  std::size_t ways() const { return groups_.size() + 1; }
  std::string name_of_way(std::size_t index) const {
    return index < groups_.size() ? std::string(backends_[index]->name()) : "loopback";
  }

  /// Seconds for each of `count` operations in a row, from a common start.
  Result<double> time(std::size_t way, gpu::OperationKind kind, std::size_t bytes, int count) {
    TRY(perform(*groups_.front(), {}, 1));
    const auto begin = std::chrono::steady_clock::now();
    if (way < groups_.size()) {
      TRY(perform(*groups_[way], operation(kind, bytes), count));
    } else {
      for (int i = 0; i < count; ++i) TRY(move_plainly(kind, bytes));
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / count;
  }

 private:
  Member(gpu::Rendezvous& rendezvous, int index, int ranks)
      : rendezvous_(rendezvous), index_(index), ranks_(ranks) {}

  Result<void> add_group(std::unique_ptr<gpu::CollectiveBackend> backend) {
    gpu::GroupOptions options{.job = fmt::format("bench-{}", getppid()),
                              .epoch = {1},
                              .name = "all",
                              .members = {},
                              .self = {index_}};
    for (int rank = 0; rank < ranks_; ++rank) options.members.push_back({rank});
    groups_.push_back(TRY(backend->create_group(options)));
    backends_.push_back(std::move(backend));
    return {};
  }

  gpu::Operation operation(gpu::OperationKind kind, std::size_t bytes) const {
    const std::size_t whole = bytes / sizeof(float) / static_cast<std::size_t>(ranks_) *
                              static_cast<std::size_t>(ranks_) * sizeof(float);
    const std::size_t part = whole / static_cast<std::size_t>(ranks_);
    gpu::Operation operation{.kind = kind};
    const bool gathers = kind == gpu::OperationKind::all_gather;
    const bool scatters = kind == gpu::OperationKind::reduce_scatter;
    if (kind == gpu::OperationKind::barrier) return operation;
    const bool broadcasts = kind == gpu::OperationKind::broadcast;
    if (!broadcasts || index_ == 0) operation.input = input_.view().subview(0, gathers ? part : whole);
    if (!broadcasts || index_ != 0) operation.output = output_.view().subview(0, scatters ? part : whole);
    return operation;
  }

  /// What the operation has to move, at least, over connections of all to all.
  Result<void> move_plainly(gpu::OperationKind kind, std::size_t bytes) {
    const auto ranks = static_cast<std::size_t>(ranks_);
    const auto self = static_cast<std::size_t>(index_);
    const bool broadcasts = kind == gpu::OperationKind::broadcast;
    std::size_t each = bytes / ranks;
    if (kind == gpu::OperationKind::all_reduce) each *= 2;
    if (kind == gpu::OperationKind::barrier) each = 1;
    std::vector<std::size_t> to(ranks, broadcasts ? (self == 0 ? bytes : 0) : each);
    std::vector<std::size_t> from(ranks, broadcasts ? 0 : each);
    if (broadcasts && self != 0) from[0] = bytes;
    to[self] = from[self] = 0;
    return plain_->exchange(to, from);
  }

  Result<void> perform(gpu::Group& group, const gpu::Operation& operation, int count) {
    std::shared_ptr<gpu::OperationStatus> last;
    for (int i = 0; i < count; ++i) last = TRY(group.post(operation, stream_.get()));
    TRY(stream_->synchronize(kDeadline * 2));
    return *last->result();
  }

  gpu::Rendezvous& rendezvous_;
  int index_;
  int ranks_;
  std::unique_ptr<gpu::Device> device_;
  gpu::Buffer input_;
  gpu::Buffer output_;
  gpu::Stream stream_;
  std::vector<std::unique_ptr<gpu::CollectiveBackend>> backends_;
  std::vector<std::unique_ptr<gpu::Group>> groups_;
  std::unique_ptr<PlainLoopback> plain_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

Result<void> measure_case(Member& member, gpu::OperationKind kind, std::size_t bytes, int ranks,
                          FILE* report) {
  // Many small operations make a batch, so that its start and end do not count.
  const int count = bytes <= (64 << 10) ? 50 : bytes <= (1 << 20) ? 10 : 1;
  constexpr int kBatches = 9;
  std::vector<std::vector<double>> seconds(member.ways());
  for (std::size_t way = 0; way < member.ways(); ++way) {
    TRY(member.time(way, kind, bytes, 1));
  }
  for (int batch = 0; batch < kBatches; ++batch) {
    for (std::size_t way = 0; way < member.ways(); ++way) {
      seconds[way].push_back(TRY(member.time(way, kind, bytes, count)));
    }
  }
  for (std::size_t way = 0; way < member.ways() && report != nullptr; ++way) {
    fmt::print(report, "{} {} {} {} {}\n", member.name_of_way(way), gpu::name_of(kind), ranks, bytes,
               median(seconds[way]));
  }
  return {};
}

Result<void> run_member(const CollectiveBench& bench, const std::filesystem::path& meeting_place, int index,
                        int ranks, FILE* report) {
  gpu::FileRendezvous rendezvous(meeting_place);
  const auto member = TRY(Member::create(rendezvous, index, ranks, *std::ranges::max_element(bench.bytes)));
  for (const gpu::OperationKind kind : kKinds) {
    if (std::ranges::count(bench.operations, gpu::name_of(kind)) == 0) continue;
    for (const std::size_t bytes : bench.bytes) TRY(measure_case(*member, kind, bytes, ranks, report));
  }
  return {};
}

Result<std::vector<CollectiveTime>> read_report(const std::filesystem::path& path) {
  std::vector<CollectiveTime> times;
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "r"), std::fclose);
  if (!file) return core::fail(Errc::io, "bench: cannot read {}", path.string());
  std::array<char, 64> backend{};
  std::array<char, 64> operation{};
  CollectiveTime time;
  while (std::fscanf(file.get(), "%63s %63s %d %zu %lf", backend.data(), operation.data(), &time.ranks,
                     &time.bytes, &time.seconds) == 5) {
    time.backend = backend.data();
    time.operation = operation.data();
    times.push_back(time);
  }
  return times;
}

Result<std::vector<CollectiveTime>> measure_with(const CollectiveBench& bench, int ranks) {
  const auto directory = TRY(TemporaryDirectory::create());
  const auto report = directory.path() / "report";
  Children children;
  for (int index = 0; index < ranks; ++index) {
    TRY(children.start([&, index] {
      FILE* const file = index == 0 ? std::fopen(report.c_str(), "w") : nullptr;
      const auto done = run_member(bench, directory.path(), index, ranks, file);
      if (!done) say_error(fmt::format("bench: rank {}", index), done.error().message);
      if (file != nullptr) std::fclose(file);
      return done ? 0 : 1;
    }));
  }
  if (!children.wait()) return core::fail(Errc::internal, "bench: a rank of {} failed; see above", ranks);
  return read_report(report);
}

}  // namespace

std::vector<std::string> collective_names() {
  std::vector<std::string> names;
  for (const auto kind : kKinds) names.emplace_back(gpu::name_of(kind));
  return names;
}

Result<std::vector<CollectiveTime>> measure_collectives(const CollectiveBench& bench) {
  std::vector<CollectiveTime> all;
  for (const int ranks : bench.ranks) {
    if (ranks < 1)
      return core::fail(Errc::invalid_argument, "bench: expected 1 rank or more, found {}", ranks);
    const auto times = TRY(measure_with(bench, ranks));
    all.insert(all.end(), times.begin(), times.end());
  }
  return all;
}

}  // namespace troupe::apps
