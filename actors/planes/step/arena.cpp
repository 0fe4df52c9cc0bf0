#include "actors/planes/step/arena.hpp"

#include <algorithm>
#include <cstring>
#include <map>

#include "actors/planes/step/verdict.hpp"
#include "core/errors.hpp"
#include "core/indices.hpp"

namespace troupe::actors {

namespace {

constexpr std::size_t kRangeAlignment = 256;

std::size_t aligned_range(std::size_t bytes) {
  return (bytes + kRangeAlignment - 1) / kRangeAlignment * kRangeAlignment;
}

std::size_t size_of(core::ElementRange range, std::size_t width) {
  return static_cast<std::size_t>(range.size()) * width;
}

/// The view of `range` in memory that holds `whole`.
gpu::BufferView part(gpu::BufferView memory, core::ElementRange whole, core::ElementRange range,
                     std::size_t width) {
  return memory.subview(static_cast<std::size_t>(range.start - whole.start) * width, size_of(range, width));
}

}  // namespace

/// Regions are requested first, then the memory of all is allocated at once, then they are handed out in the
/// same order.
class Arena::Cutter {
 public:
  void want(std::size_t bytes) { wanted_ += aligned_range(bytes); }
  std::size_t wanted() const { return wanted_; }
  void use(gpu::BufferView memory) { rest_ = memory; }
  gpu::BufferView next(std::size_t bytes) {
    const auto region = rest_.subview(0, bytes);
    rest_ = rest_.subview(aligned_range(bytes), rest_.bytes - aligned_range(bytes));
    return region;
  }

 private:
  std::size_t wanted_ = 0;
  gpu::BufferView rest_;
};

core::Result<gpu::Buffer> Arena::take(gpu::Device& device, std::size_t bytes) {
  auto buffer = TRY(device.allocate(bytes));
  taken_.*kind_ += bytes;
  return buffer;
}

core::Result<gpu::Buffer> Arena::take_carried(gpu::Device& device, std::size_t bytes) {
  if (collectives_ == nullptr || bytes == 0) return take(device, bytes);
  auto buffer = TRY(collectives_->allocate(device, bytes));
  taken_.*kind_ += bytes;
  carried_.push_back(buffer.view());
  return buffer;
}

core::Result<Arena> Arena::create(gpu::Device& device, const TrainingPlan& plan, const RankProgram& program,
                                  gpu::CollectiveBackend* collectives) {
  Arena arena;
  arena.collectives_ = collectives;
  arena.place(plan, program);
  auto taken = arena.take_all(device, plan, program);
  if (taken) return arena;
  if (taken.error().code != core::Errc::out_of_memory) return tl::unexpected(std::move(taken.error()));
  return core::fail(core::Errc::out_of_memory,
                    "rank {} of {} with {} needs {}; {} bytes were taken when the next were refused: {}; use "
                    "a strategy that shards more, such as zero3, or more ranks",
                    program.rank().value, plan.world.value, core::name_of(plan.options.strategy),
                    core::describe(core::memory_of(program.program())), arena.taken_.total(),
                    taken.error().message);
}

core::Result<void> Arena::take_all(gpu::Device& device, const TrainingPlan& plan,
                                   const RankProgram& program) {
  TRY(take_resting(device, plan, program));
  TRY(take_optimizer(device, plan, program));
  TRY(take_pools(device, program));
  optimizer_scratch_ = TRY(take(device, static_cast<std::size_t>(plan.inputs.optimizer_scratch_bytes)));
  squares_ = TRY(take(device, plan.buckets.size() * sizeof(core::ExactSquareSum)));
  const auto verdict_bytes = static_cast<std::size_t>(plan.inputs.verdict_elements) * sizeof(std::int64_t);
  verdict_ = TRY(take(device, verdict_bytes));
  own_verdict_ = TRY(device.allocate_staging(verdict_bytes));
  common_verdict_ = TRY(device.allocate_staging(verdict_bytes));
  return {};
}

/// Determines which ranges are kept here, and where a bucket is in a slot of its unit.
void Arena::place(const TrainingPlan& plan, const RankProgram& program) {
  std::vector<std::size_t> in_pool(plan.inputs.units.size());
  std::vector<std::size_t> in_gradient_pool(plan.inputs.units.size());
  std::map<std::size_t, int> slots;  // by domain
  for (const auto& buffer : plan.buffers) {
    slots[buffer.domain] = core::gradient_slots(program.program(), buffer.domain);
  }
  for (const auto bucket : plan.buckets.indices()) {
    const auto& planned = plan.buckets[bucket];
    const auto& buffer = plan.buffers[planned.buffer];
    const auto placements = plan.placements_of(bucket);
    auto& place = places_.emplace_back();
    place.whole = planned.range;
    place.parameters = program.held(placements.parameters, bucket);
    if (buffer.trainable) place.gradients = program.held(placements.gradients, bucket);
    place.slots = static_cast<std::size_t>(slots[buffer.domain]);
    place.full_slots = static_cast<std::size_t>(core::full_gradient_slots(program.program(), buffer.domain));
    place.width = core::size_of(buffer.dtype);
    place.gradient_width = core::size_of(buffer.gradient_dtype);
    const auto unit = static_cast<std::size_t>(planned.unit);
    place.pool_offset = in_pool[unit];
    place.gradient_pool_offset = in_gradient_pool[unit];
    in_pool[unit] += size_of(planned.range, place.width);
    if (buffer.trainable) {
      in_gradient_pool[unit] += place.full_slots * size_of(planned.range, place.gradient_width);
    }
  }
}

/// Parameters and gradients between rounds.
core::Result<void> Arena::take_resting(gpu::Device& device, const TrainingPlan& plan,
                                       const RankProgram& program) {
  const bool reduces_each_round = program.reduces_each_round();
  const auto has_own_full = [&](core::BucketIndex bucket) {
    return reduces_each_round && plan.is_trainable(bucket) &&
           plan.unit_of(bucket).residency == core::Residency::resident;
  };
  Cutter parameters;
  Cutter full;
  const auto buckets = places_.indices();
  std::size_t slots = 1;
  for (const auto bucket : buckets) slots = std::max(slots, at(bucket).slots);
  std::vector<Cutter> partials(slots);
  for (const auto bucket : buckets) {
    const auto& place = at(bucket);
    parameters.want(size_of(place.parameters, place.width));
    for (std::size_t slot = 0; slot < place.slots; ++slot)
      partials[slot].want(size_of(place.gradients, place.gradient_width));
    if (has_own_full(bucket)) full.want(place.full_slots * size_of(place.whole, place.gradient_width));
  }
  parameters_ = TRY(take_carried(device, parameters.wanted()));
  parameters.use(parameters_.view());
  for (std::size_t slot = 0; slot < partials.size(); ++slot) {
    // The slots above the first are merged into it, or packed, before they go anywhere.
    gradients_.push_back(TRY(slot == 0 ? take_carried(device, partials[slot].wanted())
                                       : take(device, partials[slot].wanted())));
    partials[slot].use(gradients_.back().view());
  }
  gradients_.push_back(TRY(take_carried(device, full.wanted())));
  full.use(gradients_.back().view());
  for (const auto bucket : buckets) {
    auto& place = places_[bucket];
    place.resting = parameters.next(size_of(place.parameters, place.width));
    for (std::size_t slot = 0; slot < place.slots; ++slot) {
      place.partials.push_back(partials[slot].next(size_of(place.gradients, place.gradient_width)));
    }
    if (has_own_full(bucket)) {
      place.full = full.next(place.full_slots * size_of(place.whole, place.gradient_width));
    }
  }
  return {};
}

core::Result<void> Arena::take_optimizer(gpu::Device& device, const TrainingPlan& plan,
                                         const RankProgram& program) {
  Cutter states;
  std::vector<std::pair<std::size_t, gpu::BufferView*>> wanted;  // bytes, and where their view goes
  for (const auto bucket : plan.buckets.indices()) {
    if (!plan.is_trainable(bucket)) continue;
    auto& place = places_[bucket];
    const auto range = program.held(plan.placements_of(bucket).optimizer, bucket);
    const auto& buffer = plan.buffers[plan.buckets[bucket].buffer];
    const bool has_own_master = buffer.dtype != core::DType::f32;
    if (!has_own_master) place.master_in_parameters = parameters(bucket, range);
    place.states.resize(buffer.states.size());
    for (auto& view : place.states) wanted.emplace_back(size_of(range, sizeof(float)), &view);
    if (has_own_master) wanted.emplace_back(size_of(range, sizeof(float)), &place.master);
  }
  for (const auto& [bytes, view] : wanted) states.want(bytes);
  optimizer_ = TRY(take(device, states.wanted()));
  states.use(optimizer_.view());
  for (const auto& [bytes, view] : wanted) *view = states.next(bytes);
  return {};
}

core::Result<void> Arena::take_pools(gpu::Device& device, const RankProgram& program) {
  const auto memory = core::memory_of(program.program());
  const auto pool = [&](core::Pool which, std::int64_t bytes,
                        core::List<int, gpu::Buffer>& slots) -> core::Result<void> {
    const int count = program.program().credits[static_cast<std::size_t>(which)];
    for (int slot = 0; slot < count; ++slot) {
      slots.push_back(TRY(take_carried(device, static_cast<std::size_t>(bytes / count))));
    }
    return {};
  };
  kind_ = &DeviceMemory::pools;
  TRY(pool(core::Pool::parameters, memory.parameter_pool, parameter_pool_));
  TRY(pool(core::Pool::gradients, memory.gradient_pool, gradient_pool_));
  kind_ = &DeviceMemory::staging;
  for (auto& buffer : incoming_) {
    buffer = TRY(take_carried(device, static_cast<std::size_t>(memory.incoming)));
  }
  for (auto& buffer : outgoing_) {
    buffer = TRY(take_carried(device, static_cast<std::size_t>(memory.outgoing)));
  }
  blocks_ = TRY(take_carried(device, static_cast<std::size_t>(memory.blocks)));
  for (auto& buffer : carry_) buffer = TRY(take(device, static_cast<std::size_t>(memory.carry)));
  return {};
}

gpu::BufferView Arena::parameters(core::BucketIndex bucket, core::ElementRange range) const {
  return part(at(bucket).resting, at(bucket).parameters, range, at(bucket).width);
}

gpu::BufferView Arena::gathered(core::BucketIndex bucket, int slot, core::ElementRange range) const {
  const auto& place = at(bucket);
  const auto memory = parameter_pool_[slot].view();
  return part(memory.subview(place.pool_offset, size_of(place.whole, place.width)), place.whole, range,
              place.width);
}

gpu::BufferView Arena::gradients(core::BucketIndex bucket, int slot, core::ElementRange range) const {
  CHECK(slot >= 0 && slot < slots(bucket), "a gradient slot exists");
  const auto& place = at(bucket);
  return part(place.partials[slot], place.gradients, range, place.gradient_width);
}

gpu::BufferView Arena::full_gradients(core::BucketIndex bucket, int slot, core::ElementRange range,
                                      int source) const {
  const auto& place = at(bucket);
  CHECK(source >= 0 && static_cast<std::size_t>(source) < place.full_slots, "the source exists");
  const auto bytes = size_of(place.whole, place.gradient_width);
  const auto first = static_cast<std::size_t>(source) * bytes;
  const auto memory = slot < 0
                          ? place.full.subview(first, bytes)
                          : gradient_pool_[slot].view().subview(place.gradient_pool_offset + first, bytes);
  return part(memory, place.whole, range, place.gradient_width);
}

std::vector<gpu::BufferView> Arena::added_to() const {
  std::vector<gpu::BufferView> found;
  for (const auto& place : places_) {
    found.insert(found.end(), place.partials.begin(), place.partials.end());
    found.push_back(place.full);
  }
  for (const auto& slot : gradient_pool_) found.push_back(slot.view());
  return found;
}

namespace {

using Sizes = std::vector<std::size_t>;

void add_bytes(Sizes& to, std::span<const gpu::Buffer> buffers) {
  for (const auto& buffer : buffers) to.push_back(buffer.view().bytes);
  to.push_back(buffers.size());
}

}  // namespace

bool Arena::rests_like(const Arena& other) const {
  const auto sizes = [](const Arena& arena) {
    Sizes found{arena.parameters_.view().bytes, arena.optimizer_.view().bytes};
    for (const auto& place : arena.places_) {
      found.insert(found.end(), {static_cast<std::size_t>(place.parameters.start),
                                 static_cast<std::size_t>(place.parameters.end), place.width,
                                 place.master.bytes, place.states.size()});
    }
    return found;
  };
  return sizes(*this) == sizes(other);
}

bool Arena::is_like(const Arena& other) const {
  const auto sizes = [](const Arena& arena) {
    Sizes found;
    for (const auto* buffers :
         {&arena.gradients_, &arena.parameter_pool_.items(), &arena.gradient_pool_.items()})
      add_bytes(found, *buffers);
    for (const auto* buffers : {&arena.outgoing_, &arena.incoming_, &arena.carry_})
      add_bytes(found, *buffers);
    for (const auto* buffer : {&arena.blocks_, &arena.optimizer_scratch_, &arena.squares_, &arena.verdict_})
      found.push_back(buffer->view().bytes);
    for (const auto& place : arena.places_) {
      for (const auto& range : {place.whole, place.gradients}) {
        found.push_back(static_cast<std::size_t>(range.start));
        found.push_back(static_cast<std::size_t>(range.end));
      }
      found.insert(found.end(), {place.slots, place.full_slots, place.gradient_width, place.pool_offset,
                                 place.gradient_pool_offset});
    }
    return found;
  };
  return rests_like(other) && sizes(*this) == sizes(other);
}

void Arena::swap_resting(Arena& other) {
  CHECK(rests_like(other), "what rests is divided alike");
  if (is_like(other)) return std::swap(*this, other);
  std::swap(parameters_, other.parameters_);
  std::swap(optimizer_, other.optimizer_);
  // The first that both carry, if these are memory of their collectives.
  if (!carried_.empty() && !other.carried_.empty() && parameters_.view().bytes > 0)
    std::swap(carried_.front(), other.carried_.front());
  for (const auto bucket : places_.indices()) {
    auto &own = places_[bucket], &theirs = other.places_[bucket];
    std::swap(own.resting, theirs.resting);
    std::swap(own.master, theirs.master);
    std::swap(own.master_in_parameters, theirs.master_in_parameters);
    std::swap(own.states, theirs.states);
  }
}

gpu::BufferView Arena::master(core::BucketIndex bucket) const {
  const auto& place = at(bucket);
  return place.master.bytes > 0 ? place.master : place.master_in_parameters;
}

}  // namespace troupe::actors
