#include "actors/planes/replica/plane.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/planes/checkpoint/directory.hpp"
#include "actors/planes/replica/copies.hpp"
#include "actors/shell/role_host.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "gpu/order/task_order.hpp"

namespace troupe::actors {

using core::Result;
using messages::Role;

/// An exchange. After OpenExchange only the I/O worker touches what is not const.
struct ReplicaPlane::Running {
  core::CopyName name;
  Exchange plan;
  std::map<std::uint32_t, std::unique_ptr<CopySource>> sources;  ///< by transfer
  std::map<std::uint32_t, CopySink> sinks;
  Result<void> reading;  ///< sticks
  Result<void> writing;
};

Result<std::unique_ptr<ReplicaPlane>> ReplicaPlane::create(gpu::Device& device,
                                                           const core::SaveStructure& structure,
                                                           Storage& storage, Options options) {
  CHECK(device.is_host_memory(), "copies go from files to files");
  std::unique_ptr<ReplicaPlane> plane(new ReplicaPlane(device, structure, storage, std::move(options)));
  const auto members = plane->options_.clique.size();
  // A single member has nobody to share with.
  for (std::uint32_t credit = 0; members > 1 && credit < plane->options_.credits; ++credit)
    plane->buffers_.push_back(TRY(device.allocate_staging(plane->options_.chunk_bytes * members)));
  plane->stream_ = TRY(device.create_stream({"replication", -1}));
  return plane;
}

ReplicaPlane::ReplicaPlane(gpu::Device& device, const core::SaveStructure& structure, Storage& storage,
                           Options options)
    : device_(device),
      structure_(structure),
      layout_(core::layout_text(structure)),
      storage_(storage),
      options_(std::move(options)) {
  const auto& clique = options_.clique;
  const auto self = std::find(clique.begin(), clique.end(), options_.rank);
  CHECK(self != clique.end(), "a rank is in its clique");
  place_ = static_cast<std::size_t>(self - clique.begin());
}

ReplicaPlane::~ReplicaPlane() {
  abort({core::Errc::aborted, "the session ended"});
  stream_.reset();
}

void ReplicaPlane::perform(const ReplicaWork& work) {
  std::visit([this](const auto& what) { on(what); }, work);
}

void ReplicaPlane::set_group(std::unique_ptr<gpu::Group> group) {
  std::lock_guard lock(mutex_);
  group_ = std::move(group);
  if (aborted_) group_->abort(*aborted_);
}

void ReplicaPlane::abort(const core::Error& reason) {
  std::lock_guard lock(mutex_);
  if (!aborted_) aborted_ = reason;
  if (group_) group_->abort(reason);
}

gpu::Group& ReplicaPlane::group() {
  std::lock_guard lock(mutex_);
  CHECK(group_ != nullptr, "a clique of several ranks has a group");
  return *group_;
}

void ReplicaPlane::say(messages::Message message) {
  const messages::Address keeper{options_.rank, Role::replica_keeper, 0};
  options_.post({keeper, keeper, options_.epoch, std::move(message)});
}

ReplicaPlane::RunningPointer ReplicaPlane::find(std::uint64_t exchange) {
  std::lock_guard lock(mutex_);
  const auto found = running_.find(exchange);
  CHECK(found != running_.end(), "an exchange has rounds between its opening and its closing");
  return found->second;
}

/// What a job throws is the business of the keeper, which asked for it.
void ReplicaPlane::run_io(std::function<void()> job) {
  options_.run_io([this, job = std::move(job)] {
    supervise(job, [&](std::string_view what) {
      options_.blame(Role::replica_keeper, fmt::format("a job for its files: {}", what));
    });
  });
}

void ReplicaPlane::on(const MakeCopyDirectory& work) {
  run_io([this, work] {
    if (!std::exchange(cleared_, true)) {
      auto cleared = clear_unfinished_copies(storage_);
      if (!cleared)
        options_.log.warning("what earlier local saves left was not removed: {}", cleared.error().message);
    }
    const auto made = make_copy_directory(storage_, work.name, options_.rank);
    say(messages::CopyDirectoryMade{work.sequence, messages::failure_of(made)});
  });
}

void ReplicaPlane::on(const SealCopy& work) {
  run_io([this, work] {
    messages::CopySealed sealed{work.sequence, 0, {}};
    if (auto bytes = seal(work)) {
      sealed.bytes = *bytes;
    } else {
      sealed.failure = messages::failure_of(bytes.error());
    }
    say(std::move(sealed));
  });
}

Result<std::uint64_t> ReplicaPlane::seal(const SealCopy& work) {
  const auto pieces = core::pieces_with_bytes(structure_);
  if (work.hashes.size() != pieces.size()) {
    return core::fail(core::Errc::internal, "{} shards were written, the rank has {}", work.hashes.size(),
                      pieces.size());
  }
  core::CopyManifest manifest;
  manifest.name = work.name;
  manifest.owner = options_.rank;
  manifest.world = options_.world;
  manifest.layout = layout_;
  if (!work.topology.empty()) manifest.topology = work.topology;
  if (!work.common.empty()) manifest.common = work.common;
  manifest.files = core::copy_files(core::plan_files(structure_, pieces, options_.rank), {work.hashes});
  return seal_copy(storage_, manifest, options_.sync);
}

void ReplicaPlane::on(const OpenExchange& work) {
  auto running = std::make_shared<Running>();
  running->name = work.name;
  running->plan = work.plan;
  for (std::uint32_t i = 0; i < work.plan.transfers.size(); ++i) {
    const auto& transfer = work.plan.transfers[i];
    if (std::find(transfer.to.begin(), transfer.to.end(), options_.rank) != transfer.to.end())
      running->sinks.try_emplace(i, storage_, work.name, transfer.owner, options_.sync);
  }
  std::lock_guard lock(mutex_);
  running_[work.exchange] = std::move(running);
}

gpu::BufferView ReplicaPlane::own_part(const Exchange& plan, std::uint32_t round, std::uint32_t credit) {
  const gpu::PartCounts counts = plan.counts(round);
  return buffers_[credit].view().subview(counts.before(place_), counts[place_]);
}

void ReplicaPlane::on(const ReadRound& work) {
  run_io([this, work, running = find(work.exchange)] {
    if (running->reading)
      running->reading = read(*running, work.round, own_part(running->plan, work.round, work.credit));
    say(messages::RoundRead{work.exchange, work.round, work.credit, messages::failure_of(running->reading)});
  });
}

Result<void> ReplicaPlane::read(Running& running, std::uint32_t round, gpu::BufferView part) {
  gpu::declare(device_, "reading of a copy", {}, {part});
  std::span<std::byte> rest(part.data, part.bytes);
  for (const auto& span : running.plan.spans(round, place_)) {
    auto& source = running.sources[span.transfer];
    if (!source) {
      source = TRY(CopySource::open(storage_, running.name, running.plan.transfers[span.transfer].owner));
    }
    TRY(source->read(rest.first(span.bytes)));
    rest = rest.subspan(span.bytes);
  }
  return {};
}

gpu::Operation ReplicaPlane::gather(const Exchange& plan, std::uint32_t round, gpu::BufferView buffer) const {
  gpu::Operation operation;
  operation.kind = gpu::OperationKind::all_gather;
  operation.dtype = core::DType::u8;
  operation.input_counts = plan.counts(round);
  const auto& counts = operation.input_counts;
  operation.input = buffer.subview(counts.before(place_), counts[place_]);
  operation.output = buffer.subview(0, counts.total());
  operation.deadline = options_.deadline;
  return operation;
}

void ReplicaPlane::on(const ShareRound& work) {
  messages::RoundShared shared{work.exchange, work.round, work.credit, {}};
  const auto running = find(work.exchange);
  auto posted = group().post(gather(running->plan, work.round, buffers_[work.credit].view()), stream_.get());
  if (!posted) {
    shared.failure = messages::failure_of(posted.error());
    say(std::move(shared));
    return;
  }
  stream_->notify([this, shared, status = std::move(*posted)]() mutable {
    if (auto result = status->result()) shared.failure = messages::failure_of(*result);
    say(std::move(shared));
  });
}

void ReplicaPlane::on(const WriteRound& work) {
  run_io([this, work, running = find(work.exchange)] {
    const auto written = write(*running, work);
    if (running->writing) running->writing = written;
    say(messages::RoundWritten{work.exchange, work.round, work.credit, messages::failure_of(written)});
  });
}

Result<void> ReplicaPlane::write(Running& running, const WriteRound& work) {
  Result<void> first;
  std::size_t at = 0;
  for (std::size_t member = 0; member < running.plan.clique.size(); ++member) {
    for (const auto& span : running.plan.spans(work.round, member)) {
      const auto bytes = buffers_[work.credit].view().subview(at, span.bytes);
      at += span.bytes;
      const auto sink = running.sinks.find(span.transfer);
      if (sink == running.sinks.end()) continue;
      gpu::declare(device_, "writing of a copy", {bytes}, {});
      // One copy that cannot be kept must not cost the others.
      auto written = sink->second.write({bytes.data, bytes.bytes});
      if (first) first = std::move(written);
    }
  }
  return first;
}

void ReplicaPlane::on(const CloseExchange& work) {
  auto running = find(work.exchange);
  {
    std::lock_guard lock(mutex_);
    running_.erase(work.exchange);
  }
  run_io([this, work, running = std::move(running)] {
    say(messages::ExchangeClosed{work.exchange, messages::failure_of(close(*running))});
  });
}

Result<void> ReplicaPlane::close(Running& running) {
  Result<void> first = running.reading;
  for (auto& [transfer, sink] : running.sinks) {
    auto closed = sink.close();
    if (first) first = std::move(closed);
  }
  return first;
}

void ReplicaPlane::on(const TidyCopies& work) {
  run_io([this, work] {
    if (auto tidied = tidy_copies(storage_, work.name, options_.keep); !tidied)
      options_.log.warning("older local copies were not removed: {}", tidied.error().message);
    // After that many saves, all that are kept belong to the ranks of now.
    for (auto* storage : saves_tidied_++ < options_.keep ? options_.beside : std::vector<Storage*>{}) {
      if (auto tidied = tidy_older_copies(*storage, work.name, options_.keep); !tidied)
        options_.log.warning("local copies of former ranks were not removed: {}", tidied.error().message);
    }
    say(messages::CopiesTidied{work.sequence});
  });
}

void ReplicaPlane::on(const DiscardCopies& work) {
  run_io([this, work] {
    if (auto removed = remove_tree(storage_, directory_of(work.name)); !removed)
      options_.log.warning("{} of a local save that failed was not removed: {}", directory_of(work.name),
                           removed.error().message);
    say(messages::CopiesTidied{work.sequence});
  });
}

}  // namespace troupe::actors
