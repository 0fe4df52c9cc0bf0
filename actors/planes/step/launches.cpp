#include "actors/planes/step/launches.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "actors/planes/step/ranges.hpp"
#include "core/errors.hpp"
#include "core/program/exchange.hpp"
#include "gpu/kernels.hpp"

namespace troupe::actors {

namespace {

gpu::PartCounts part_counts(const core::Counts& counts) {
  if (counts.runs.size() == 1) {
    return gpu::PartCounts::even(static_cast<std::size_t>(counts.runs[0].elements),
                                 static_cast<std::size_t>(counts.runs[0].members));
  }
  const auto each = counts.each();
  return std::vector<std::size_t>(each.begin(), each.end());
}

/// A range of one of the rank's sums, which are f32.
gpu::BufferView part_of(gpu::BufferView sum, core::ElementRange range) {
  return sum.subview(static_cast<std::size_t>(range.start) * sizeof(float), elements(range) * sizeof(float));
}

}  // namespace

/// An entry while it is carried out: what its recipe says, one step after another, up to an operation that
/// is refused. What it posts joins `flight`.
class Launches::Entry {
 public:
  Entry(Launches& launches, const PlannedLaunch& launch, core::Step step, Flight flight)
      : launches_(launches),
        in_(launches.in_),
        arena_(in_.tensors.arena),
        launch_(launch),
        entry_(*launch.entry),
        step_(step),
        bucket_(launch.bucket.value_or(core::BucketIndex{})),
        from_(launch.from),
        to_(launch.to),
        flight_(std::move(flight)) {
    for (const auto& sum : launch.held) roots_.push_back(sum_at(sum, from_, from_));
  }

  Flight carry_out() {
    const auto& recipe = in_.tensors.program.recipe(launch_);
    act(recipe.before);
    for (; chunk_ < launch_.chunks; ++chunk_) act(recipe.each_chunk);
    act(recipe.after);
    return std::move(flight_);
  }

 private:
  void act(const std::vector<core::RecipeStep>& steps) {
    for (const auto& step : steps) {
      const bool is_sums = step.queue == core::Queue::sums;
      if (!flight_.refused) act(step, (is_sums ? in_.streams.update : in_.streams.communication).get());
    }
  }

  void act(const core::RecipeStep& step, gpu::StreamView on) {
    using core::Action;
    switch (step.action) {
      case Action::wait:
        return on->wait(event_of(step.mark));
      case Action::record:
        return on->record(event_of(step.mark));
      case Action::reserve:
        return reserve(on);
      case Action::carry:
        return carry();
      case Action::note:
        return note();
      case Action::count:
        return count();
      case Action::cut_sums:
        return cut_sums();
      case Action::cut_part:
        return cut_part();
      case Action::cut_gather:
        return cut_gather();
      case Action::cut_exchange:
        return cut_exchange();
      case Action::send:
        return send(on);
      case Action::pack_part:
        return gpu::cast(gathered_[static_cast<std::size_t>(launch_.place)], {sent_, entry_.wire}, on);
      case Action::pack_blocks:
        return pack_blocks(step, on);
      case Action::keep:
        return keep();
      case Action::post:
        return post(step);
      case Action::post_blocks:
        return post_blocks();
      case Action::accumulate:
        return gpu::accumulate({arrived_, entry_.wire}, {memory_of(step.to, to_), entry_.wire}, on);
      case Action::add_tree:
        return add_tree(step, on);
      case Action::add_in_order:
        return add_in_order(on);
      case Action::add_members:
        return add_members(step, on);
      case Action::unpack:
        return gpu::unpack({arrived_, entry_.wire}, gathered_, on);
      case Action::unpack_blocks:
        return unpack_members(step, on, 0, members());
      case Action::unpack_others:
        for (const auto& [first, end] : launch_.others) unpack_members(step, on, first, end);
        return;
      case Action::round:
        return launches_.sums_.round(bucket_, launch_.to, on);
      case Action::measure:
        return launches_.sums_.measure(bucket_, on);
      case Action::clear:
        return launches_.sums_.clear(launch_, on);
      case Action::write_verdict:
        return launches_.verdict_.write(on);
      case Action::read_verdict:
        return launches_.verdict_.bring(step_, on);
      case Action::merged:
        return merged(on);
    }
  }

  gpu::EventView event_of(core::Mark mark) const {
    const auto& streams = in_.streams;
    switch (mark) {
      case core::Mark::prepared:
        return streams.buckets[bucket_].prepared.get();
      case core::Mark::exchanged:
        return streams.buckets[bucket_].exchanged.get();
      case core::Mark::reduced:
        return streams.buckets[bucket_].reduced.get();
      case core::Mark::cleared:
        return launch_.slot < 0 ? streams.buckets[bucket_].cleared.get()
                                : streams.cleared[launch_.slot].get();
      case core::Mark::updated:
        return streams.buckets[bucket_].updated.get();
      case core::Mark::released:
        return streams.released.at(launch_.slot).get();
      case core::Mark::staged:
        return streams.staged[credit_].get();
      case core::Mark::measured:
        break;
    }
    return streams.measured.get();
  }

  gpu::BufferView memory_of(core::Place place, core::ElementRange range) const {
    switch (place) {
      case core::Place::kept_parameters:
        return arena_.parameters(bucket_, range);
      case core::Place::full_parameters:
        return arena_.gathered(bucket_, launch_.slot, range);
      case core::Place::sums:
        return arena_.gradients(bucket_, 0, range);
      case core::Place::full_gradients:
        return arena_.full_gradients(bucket_, launch_.slot, range);
      case core::Place::sent:
        return sent_;
      case core::Place::arrived:
        return arrived_;
      case core::Place::verdict:
        return arena_.verdict();
      default:
        return {};
    }
  }

  void reserve(gpu::StreamView on) {
    credit_ = launches_.exchanges_++ % Arena::kScratchCredits;
    on->wait(in_.streams.staged[credit_].get());
  }

  void carry() { launches_.carry_[bucket_] = launches_.carries_++ % Arena::kScratchCredits; }
  void note() { launches_.launched_ns_[bucket_] = in_.device.now().count(); }
  void count() { input_counts_ = part_counts(entry_.counts); }
  std::size_t members() const { return static_cast<std::size_t>(entry_.counts.members()); }

  /// For so many elements, as the wire has them.
  gpu::BufferView staged(gpu::BufferView memory, std::size_t count) const {
    return memory.subview(0, count * core::size_of(entry_.wire));
  }

  void cut_sums() { arrived_ = staged(arena_.incoming(credit_), elements(to_)); }

  void cut_part() {
    const auto most = core::chunk_elements(entry_);
    const auto start = launch_.from.start + chunk_ * most;
    from_ = to_ = {start, std::min(start + most, launch_.from.end)};
    arrived_ = staged(arena_.incoming(credit_), members() * elements(to_));
  }

  void cut_gather() {
    std::vector<std::size_t> counts;
    gathered_.clear();
    for (const auto& range : core::chunk_ranges(entry_, chunk_)) {
      counts.push_back(elements(range));
      gathered_.emplace_back(arena_.gradients(bucket_, 0, moved(range, launch_.to.start)),
                             in_.tensors.gradient_dtype(bucket_));
    }
    input_counts_ = std::move(counts);
    sent_ = staged(arena_.outgoing(credit_), gathered_[static_cast<std::size_t>(launch_.place)].count());
    arrived_ = staged(arena_.incoming(credit_), input_counts_.total());
  }

  void cut_exchange() {
    const auto chunk = core::exchange_chunk(entry_, launch_.place, chunk_);
    input_counts_ = part_counts(chunk.input_counts);
    output_counts_ = part_counts(chunk.output_counts);
    arrived_ = staged(arena_.incoming(credit_), output_counts_.total());
    to_ = moved(chunk.own, launch_.from.start);
    terms_ = {};
    terms_.add({arrived_, entry_.wire}, launch_.arriving);
  }

  /// How follows from how many sums this rank has: the program was written out with it. Several are packed in
  /// the order of the receivers: their part of each sum.
  void send(gpu::StreamView on) {
    if (launch_.sending != Sending::packed) {
      sent_ = launch_.sending == Sending::nothing ? gpu::BufferView{} : roots_.front();
      return;
    }
    sent_ = staged(arena_.outgoing(credit_), input_counts_.total());
    std::vector<gpu::ConstElements> sent;
    for (const auto& range : core::chunk_ranges(entry_, chunk_)) {
      for (const auto& root : roots_) sent.emplace_back(part_of(root, range), core::DType::f32);
    }
    gpu::pack(std::move(sent), {sent_, entry_.wire}, on);
  }

  /// Kept values were rounded to blocks when they were stepped or loaded, so nothing is lost here, not even
  /// when a second gather packs what a first one unpacked. The packed parts, including this rank's, are laid
  /// out as they are gathered.
  void pack_blocks(const core::RecipeStep& step, gpu::StreamView on) {
    const gpu::Elements part{memory_of(step.from, from_), in_.tensors.tensor_class(bucket_).storage};
    const auto bytes =
        static_cast<std::size_t>(core::wire_bytes(entry_, static_cast<std::int64_t>(part.count())));
    arrived_ =
        arena_.blocks().subview(0, static_cast<std::size_t>(core::wire_bytes(entry_, entry_.elements)));
    sent_ = arrived_.subview(static_cast<std::size_t>(launch_.place) * bytes, bytes);
    gpu::pack_mx(entry_.wire, part, sent_, on);
  }

  void keep() {
    const auto own = core::chunk_range(entry_, chunk_, 0);
    to_ = moved(own, launch_.from.start);
    terms_ = {};
    for (const auto& root : roots_) terms_.push_back({part_of(root, own), core::DType::f32});
  }

  void post(const core::RecipeStep& step) {
    gpu::Operation operation;
    operation.kind = gpu::kind_of(entry_.operation);
    operation.dtype = entry_.wire;
    operation.reduce = std::array{gpu::ReduceOp::sum, gpu::ReduceOp::average}[entry_.averages];
    operation.input = memory_of(step.from, from_);
    operation.output = memory_of(step.to, to_);
    operation.input_counts = input_counts_;
    operation.output_counts = output_counts_;
    post_operation(std::move(operation));
  }

  void post_blocks() {
    gpu::Operation operation;
    operation.kind = gpu::OperationKind::all_gather;
    operation.dtype = core::DType::u8;
    operation.input = sent_;
    operation.output = arrived_;
    post_operation(std::move(operation));
  }

  void post_operation(gpu::Operation operation) {
    operation.step = step_;
    operation.deadline = in_.options.collective_deadline;
    if (launch_.bucket) operation.unit = static_cast<std::int32_t>(bucket_.value);
    launches_.communication_.post(flight_, std::move(operation), core::communicator_of(entry_));
  }

  /// A sum never includes what is below it in its stack, so whatever it overwrites was added before.
  void add_tree(const core::RecipeStep& step, gpu::StreamView on) {
    const auto all = terms();
    for (const auto& root : *launch_.sums) {
      gpu::TreeSum sum;
      for (const auto& [first, count] : root.terms) sum.slots.add(all, first, count);
      sum.steps = root.steps;
      sum.factor = factor_of(step);
      sum.output = destination_of(root);
      gpu::tree_sum(std::move(sum), on);
    }
  }

  /// One term after the other, a few in each pass over the output: a kernel's fast memory holds no more of
  /// them.
  void add_in_order(gpu::StreamView on) {
    constexpr std::size_t kTerms = 16;
    const auto all = terms();
    const auto& sum = launch_.sums->front();
    const auto output = destination_of(sum);
    for (std::size_t next = 0; next < all.size();) {
      gpu::TreeSum pass;
      if (next > 0) pass.slots.push_back(output);
      const auto count = std::min(kTerms - pass.slots.size(), all.size() - next);
      pass.slots.add(all, next, count);
      next += count;
      pass.steps = std::span(sum.steps).first(pass.slots.size() - 1);
      pass.output = output;
      gpu::tree_sum(std::move(pass), on);
    }
  }

  void add_members(const core::RecipeStep& step, gpu::StreamView on) {
    gpu::TreeSum sum;
    sum.slots.add({arrived_, core::DType::f32}, members());
    sum.steps = launch_.sums->front().steps;
    sum.factor = factor_of(step);
    sum.output = {memory_of(step.to, to_), core::DType::f32};
    gpu::tree_sum(std::move(sum), on);
  }

  void unpack_members(const core::RecipeStep& step, gpu::StreamView on, std::size_t first, std::size_t end) {
    const gpu::Elements output{memory_of(step.to, to_), in_.tensors.tensor_class(bucket_).storage};
    const auto each = elements(from_);
    gpu::unpack_mx(entry_.wire, arrived_.subview(first * sent_.bytes, (end - first) * sent_.bytes), each,
                   output.part(first * each, (end - first) * each), on);
  }

  void merged(gpu::StreamView on) {
    const messages::LaneMerged over{step_, in_.tensors.program.lane_or_end(launch_.round), bucket_};
    on->notify([&in = in_, over, flight = flight_] {
      // After a failure it is unknown whether the memory is free.
      if (!flight.failure().failed) in.say(messages::Role::trainer, 0, over);
    });
  }

  /// Sums of earlier rounds come before what has arrived.
  gpu::Slots terms() const {
    gpu::Slots terms;
    for (const int slot : launch_.rested)
      terms.push_back({arena_.gradients(bucket_, slot, to_), core::DType::f32});
    terms.add(terms_, 0, terms_.size());
    return terms;
  }

  /// All of a sum that is kept here, or one of those that are carried on to the next axis.
  gpu::BufferView sum_at(const KeptSum& sum, core::ElementRange whole, core::ElementRange range) const {
    switch (sum.place) {
      case core::Place::full_gradients:
        return arena_.full_gradients(bucket_, launch_.slot, range, sum.slot);
      case core::Place::carried: {
        const auto first = static_cast<std::int64_t>(sum.slot) * whole.size() - whole.start;
        return part_of(arena_.carry(launches_.carry_[bucket_]), moved(range, first));
      }
      default:
        return arena_.gradients(bucket_, sum.slot, range);
    }
  }

  gpu::Elements destination_of(const RootSum& sum) const {
    return {sum_at(sum.kept, launch_.to, to_), core::DType::f32};
  }

  float factor_of(const core::RecipeStep& step) const {
    return step.scaled ? in_.tensors.plan.averaging_factor() : 1.0F;
  }

  Launches& launches_;
  const StepContext& in_;
  const Arena& arena_;
  const PlannedLaunch& launch_;
  const core::LaunchedEntry& entry_;
  core::Step step_;
  core::BucketIndex bucket_;
  core::ElementRange from_;  ///< of the bucket's buffer: what it reads, or what a chunk reads
  core::ElementRange to_;    ///< what it writes
  std::int64_t chunk_ = 0;
  std::size_t credit_ = 0;  ///< of staging
  Flight flight_;
  std::vector<gpu::BufferView> roots_;  ///< this rank's sums
  gpu::PartCounts input_counts_;
  gpu::PartCounts output_counts_;
  gpu::BufferView sent_;
  gpu::BufferView arrived_;
  std::vector<gpu::Elements> gathered_;  ///< by member: where what arrives belongs
  gpu::Slots terms_;                     ///< what has arrived, to be added
};

void Launches::perform(const LaunchCollective& work) {
  auto flight = Entry(*this, in_.tensors.program.launch(work.entry), work.step, {}).carry_out();
  if (in_.options.launched) in_.options.launched(work.step, work.entry);
  const auto say_done = [this, work](const messages::Failure& failure) {
    in_.say(messages::Role::conductor, 0,
            messages::CollectiveDone{work.step, work.entry, work.sequence, failure});
  };
  if (const auto refused = flight.refused) {
    note_failure(work);
    communication_.when_over(std::move(flight), {});
    return say_done(messages::failure_of(*refused));
  }
  communication_.when_over(std::move(flight),
                           [this, work, say_done](const Flight& over, const messages::Failure& failure,
                                                  std::chrono::nanoseconds now) {
                             trace(work, over, now);
                             if (failure.failed) {
                               note_failure(work);
                             } else if (in_.tensors.program.launch(work.entry).is_verdict()) {
                               in_.say(messages::Role::rank_supervisor, 0,
                                       messages::VerdictArrived{work.step, verdict_.arrived(work.step)});
                             }
                             say_done(failure);
                           });
}

void Launches::note_failure(const LaunchCollective& work) {
  if (in_.tensors.program.launch(work.entry).moves_gradients()) verdict_.reduction_failed(work.step);
}

void Launches::trace(const LaunchCollective& work, const Flight& flight, std::chrono::nanoseconds end) const {
  if (!flight.began_ns || !in_.options.tracer) return;
  const auto& launch = in_.tensors.program.launch(work.entry);
  const auto flow = launch.bucket ? bucket_flow(work.step, *launch.bucket) : 0;
  in_.options.tracer->add({core::TraceEvent::Kind::span, "communication", describe(launch),
                           std::chrono::nanoseconds(flight.began_ns->load()), end, 0, flow});
}

/// Some of the program's entries, outside of a step and in its order.
void Launches::gather(const std::vector<core::PlanEntryIndex>& entries) {
  Flight flight;
  for (const auto entry : entries) {
    if (flight.refused) break;
    flight = Entry(*this, in_.tensors.program.launch(entry), {}, std::move(flight)).carry_out();
  }
  say_when_over<messages::StateGathered>(std::move(flight), nullptr);
}

/// `owner` keeps the memory of the operations alive.
template <class Over>
void Launches::say_when_over(Flight flight, std::shared_ptr<const void> owner) {
  communication_.when_over(std::move(flight),
                           [this, owner = std::move(owner)](const Flight&, const messages::Failure& failure,
                                                            std::chrono::nanoseconds) {
                             in_.say(messages::Role::trainer, 0, Over{failure});
                           });
}

void Launches::gather_parameters() {
  gather(in_.tensors.program.publishing());
}

int Launches::gather_unit(const std::vector<core::BucketIndex>& buckets) {
  const auto entries = in_.tensors.program.bringing(buckets);
  gather(entries);
  return entries.empty() ? -1 : in_.tensors.program.launch(entries.front()).slot;
}

void Launches::exchange_loaded(LoadedBytes bytes) {
  Flight flight;
  communication_.post(flight, bytes.operation(in_.options.collective_deadline), {core::GroupKind::world, 0});
  say_when_over<messages::LoadedShared>(std::move(flight), std::move(bytes.owner));
}

}  // namespace troupe::actors
