#include "core/program/plan_program.hpp"

#include <algorithm>
#include <map>
#include <numeric>

#include "core/errors.hpp"
#include "core/plan/placement.hpp"
#include "core/program/fold.hpp"
#include "core/program/recipes.hpp"
#include "core/program/reductions.hpp"

namespace troupe::core {
namespace {

constexpr auto F = Placement::flat_shard;
constexpr auto R = Placement::replicated;

bool has(const Placements& placements, Placement placement) {
  return std::find(placements.begin(), placements.end(), placement) != placements.end();
}

class ProgramPlanner {
 public:
  static Result<Program> plan(const ProgramInputs& inputs, const std::vector<int>& coordinates) {
    TRY(check(inputs, coordinates));
    const int rounds = TRY(rounds_of(inputs, coordinates));
    const auto units = static_cast<int>(inputs.units.size());
    if (!inputs.passes.empty()) TRY(check_passes(inputs.passes, units, rounds));
    ProgramPlanner planner(inputs, coordinates, TRY(Reductions::create(inputs, coordinates)));
    planner.program_.order = TRY(order_of(inputs));
    planner.describe_it(rounds);
    if (inputs.passes.empty()) {
      planner.program_.last_round.runs = fold(TRY(planner.round(true)));
      planner.program_.body.runs = fold(TRY(planner.round(false)));
    } else {
      const auto of_round = [&](int round) { return round + 1 == rounds; };
      const StepClock clock(units, rounds, inputs.passes);
      planner.program_.passes = fold(inputs.passes);
      planner.program_.pass_segments = fold(TRY(planner.entries_of(inputs.passes, clock, of_round)));
    }
    planner.program_.epilogue.runs = fold(TRY(planner.epilogue()));
    TRY(planner.add_operations());
    return std::move(planner.program_);
  }

 private:
  ProgramPlanner(const ProgramInputs& inputs, const std::vector<int>& coordinates, Reductions reductions)
      : inputs_(inputs), reductions_(std::move(reductions)), recipes_(inputs, program_.recipes) {
    program_.coordinates = coordinates;
  }

  static Result<UnitOrder> order_of(const ProgramInputs& inputs);
  static Result<void> check(const ProgramInputs& inputs, const std::vector<int>& coordinates);
  static Result<void> check_domains(const ProgramInputs& inputs, const std::vector<int>& coordinates);
  static Result<void> check_classes(const ProgramInputs& inputs);
  static Result<void> check_unit(const ProgramInputs& inputs, std::size_t index);

  bool is_gathered(const Unit& unit) const {
    return unit.residency == Residency::on_demand && unit.use != UnitUse::none && !unit.tensors.empty() &&
           has(inputs_.placements.parameters, F);
  }
  bool is_reduced(const Unit& unit) const {
    return unit.use == UnitUse::forward_and_backward &&
           std::any_of(unit.tensors.begin(), unit.tensors.end(),
                       [](const FlatTensor& t) { return t.trainable; });
  }
  /// Those of a resident unit may come from any unit's backward, so they have memory of their own.
  bool has_pooled_gradients(const Unit& unit) const {
    return is_reduced(unit) && unit.residency == Residency::on_demand && has(inputs_.placements.gradients, F);
  }

  void describe_it(int rounds) {
    program_.numerics = inputs_.numerics;
    program_.placements = inputs_.placements;
    program_.domains = inputs_.domains;
    program_.classes = inputs_.classes;
    program_.units = fold(inputs_.units.items());
    program_.lanes = inputs_.lanes;
    program_.pieces = inputs_.pieces;
    program_.verdict_elements = inputs_.verdict_elements;
    program_.optimizer_scratch_bytes = inputs_.optimizer_scratch_bytes;
    program_.streams = inputs_.separate_streams ? 2 : 1;
    program_.ready_at_points = inputs_.ready_at_points;
    program_.finish = inputs_.finish;
    program_.rounds = rounds;
    program_.body.times = inputs_.passes.empty() ? rounds - 1 : 0;
    int gathered = 0;
    int pooled = 0;
    for (const Unit& unit : inputs_.units) {
      gathered += is_gathered(unit) ? 1 : 0;
      pooled += has_pooled_gradients(unit) ? 1 : 0;
    }
    const auto slots = [&](int wanted, int users) { return std::min(inputs_.overlap ? wanted : 1, users); };
    program_.credits = {slots(inputs_.parameter_credits, gathered), slots(inputs_.gradient_credits, pooled)};
  }

  /// A round of forward and backward of all units.
  Result<std::vector<ProgramEntry>> round(bool last) {
    const auto units = static_cast<int>(inputs_.units.size());
    const std::vector<UnitPass> passes{{Pass::forward, 0, 0, units}, {Pass::backward, 0, 0, units}};
    const StepClock clock(units, 1, program_.order);
    const auto placed = TRY(entries_of(passes, clock, [&](int) { return last; }));
    std::vector<ProgramEntry> entries;
    for (const PlacedEntry& one : placed) entries.push_back(one.entry);
    return entries;
  }

  template <class IsLast>
  Result<std::vector<PlacedEntry>> entries_of(const std::vector<UnitPass>& passes, const StepClock& clock,
                                              IsLast is_last) {
    std::vector<PlacedEntry> placed;
    for (std::size_t i = 0; i < passes.size(); ++i) TRY(add_gathers(passes, i, placed));
    TRY(add_reductions(passes, is_last, placed));
    recipes_.assign(placed, is_last);
    std::stable_sort(placed.begin(), placed.end(), [&](const PlacedEntry& a, const PlacedEntry& b) {
      return clock.at(a.entry.ready, a.round) < clock.at(b.entry.ready, b.round);
    });
    return placed;
  }

  static void place(const std::vector<ProgramEntry>& entries, int round, std::vector<PlacedEntry>& placed) {
    for (const ProgramEntry& entry : entries) placed.push_back({entry, round});
  }

  /// All units of a pass, in its order.
  std::vector<int> units_in(const UnitPass& pass) const {
    const bool is_forward = pass.kind == Pass::forward;
    // Without a list of passes, each goes through all units.
    if (!program_.order.empty()) return is_forward ? program_.order.forward : program_.order.backward;
    std::vector<int> units(static_cast<std::size_t>(pass.end - pass.first));
    std::iota(units.begin(), units.end(), pass.first);
    if (!is_forward) std::reverse(units.begin(), units.end());
    return units;
  }

  /// Units in the order of a sweep.
  template <class Wanted>
  std::vector<int> sweep(const UnitPass& pass, Wanted wanted) const {
    auto units = units_in(pass);
    std::erase_if(units, [&](int unit) { return !wanted(inputs_.units[unit]); });
    return units;
  }

  /// F -> R for each use of a unit on demand, as early as its slot is free.
  Result<void> add_gathers(const std::vector<UnitPass>& passes, std::size_t at,
                           std::vector<PlacedEntry>& placed) {
    const UnitPass& pass = passes[at];
    const auto users = sweep(pass, [&](const Unit& unit) {
      return is_gathered(unit) && (pass.kind == Pass::forward || unit.use == UnitUse::forward_and_backward);
    });
    if (users.empty()) return {};
    TrainerPoint start{Phase::round_begin, 0};
    if (at > 0) {
      const UnitPass& before = passes[at - 1];
      start = {phase_of(before.kind), units_in(before).back(), before.round - pass.round};
    }
    const Phase phase = phase_of(pass.kind);
    const auto slots = static_cast<std::size_t>(program_.credits[static_cast<std::size_t>(Pool::parameters)]);
    const Placements all(inputs_.placements.parameters.size(), R);
    const auto moves = TRY(redistributions(inputs_.placements.parameters, all));
    std::vector<ProgramEntry> entries;
    for (std::size_t i = 0; i < users.size(); ++i) {
      ProgramEntry entry;
      entry.ready = i < slots ? start : TrainerPoint{phase, users[i - slots]};
      entry.needed = {phase, users[i]};
      entry.takes = Credit{Pool::parameters, {phase, users[i]}};
      add_growing(users[i], inputs_.placements.parameters, moves, false, entry, entries);
    }
    place(entries, pass.round, placed);
    return {};
  }

  /// all_gathers of a unit's tensors, one for each move; `model` has the points, and its credit is taken by
  /// the first of them.
  void add_growing(int unit, const Placements& from, const std::vector<AxisRedistribution>& moves,
                   bool trained_only, ProgramEntry model, std::vector<ProgramEntry>& entries) {
    const auto& tensors = inputs_.units[unit].tensors;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (trained_only && !tensors[t].trainable) continue;
      const TensorClass& tensor_class = inputs_.classes[tensors[t].tensor_class];
      const Domain& domain = inputs_.domains[tensor_class.domain];
      Placements now = from;
      for (const auto& [axis, what] : moves) {
        ProgramEntry entry = model;
        entry.operation = CollectiveKind::all_gather;
        entry.group = domain.axes[axis];
        entry.tensor = {TensorKind::parameters, unit, static_cast<int>(t)};
        entry.from = now;
        now[axis] = R;
        entry.to = now;
        entry.wire = tensor_class.gathered.value_or(tensor_class.storage);
        entry.elements = tensors[t].elements / shard_count(now, domain.sizes);
        entry.counts = Counts::even(entry.elements / domain.sizes[axis], domain.sizes[axis]);
        entry.stream = program_.streams - 1;
        entries.push_back(std::move(entry));
        model.takes.reset();
      }
    }
  }

  /// A unit in a pass that adds to its gradients.
  struct Addition {
    int unit = 0;
    int round = 0;
    std::size_t pass = 0;
    int memory = 0;  ///< a slot of the pool, or below 0 its own
  };

  std::vector<Addition> additions(const std::vector<UnitPass>& passes, Pass adding) const {
    const int slots = program_.credits[static_cast<std::size_t>(Pool::gradients)];
    std::vector<Addition> found;
    for (std::size_t i = 0; i < passes.size(); ++i) {
      if (passes[i].kind != adding) continue;
      int pooled = 0;
      for (const int user : sweep(passes[i], [&](const Unit& unit) { return is_reduced(unit); })) {
        const bool in_pool = has_pooled_gradients(inputs_.units[user]);
        found.push_back({user, passes[i].round, i, in_pool ? pooled++ % slots : -1 - user});
      }
    }
    return found;
  }

  /// Only a unit on demand has a point of its own at which its gradients are known to be complete. Without
  /// such points they are reduced when the lane has ended, or behind its last unit where each round reduces.
  TrainerPoint ready_in(const UnitPass& pass, int unit) const {
    const bool each_round = has(inputs_.placements.gradients, F);
    if (!inputs_.overlap && !each_round) return {Phase::round_end, 0};
    const bool is_resident = inputs_.units[unit].residency == Residency::resident;
    if (!inputs_.ready_at_points || !is_resident) return {phase_of(pass.kind), unit};
    if (!each_round) return {Phase::round_end, 0};
    return {phase_of(pass.kind), units_in(pass).back()};
  }

  template <class IsLast>
  Result<void> add_reductions(const std::vector<UnitPass>& passes, IsLast is_last,
                              std::vector<PlacedEntry>& placed) {
    const Pass adding = gradient_pass(splits_backward(passes));
    const auto all = additions(passes, adding);
    const bool each_round = has(inputs_.placements.gradients, F);
    const bool is_list = !inputs_.passes.empty();
    std::map<int, std::size_t> next_user;  // of memory
    std::vector<std::vector<ProgramEntry>> entries(all.size());
    for (std::size_t i = all.size(); i-- > 0;) {
      const auto& [user, round, pass, memory] = all[i];
      Reductions::Unit unit;
      unit.index = user;
      unit.pooled = memory >= 0;
      unit.ready = ready_in(passes[pass], user);
      unit.reused = {is_list ? Phase::finish : Phase::round_end, 0};
      const auto next = next_user.find(memory);
      // Each round's gradients leave their memory for those that have it next.
      if (each_round && next != next_user.end()) {
        unit.reused = {phase_of(adding), all[next->second].unit, all[next->second].round - round};
      }
      next_user[memory] = i;
      TRY(reductions_.add(unit, is_last(round), entries[i]));
    }
    for (std::size_t i = 0; i < all.size(); ++i) place(entries[i], all[i].round, placed);
    return {};
  }

  Result<std::vector<ProgramEntry>> epilogue() {
    std::vector<ProgramEntry> entries = TRY(entries_of_epilogue());
    std::vector<PlacedEntry> placed;
    place(entries, 0, placed);
    recipes_.assign(placed, [](int) { return true; });
    for (std::size_t i = 0; i < entries.size(); ++i) entries[i] = placed[i].entry;
    return entries;
  }

  Result<std::vector<ProgramEntry>> entries_of_epilogue() {
    std::vector<ProgramEntry> entries;
    ProgramEntry verdict;
    verdict.wire = DType::i64;
    verdict.elements = inputs_.verdict_elements;
    verdict.counts = Counts::even(inputs_.verdict_elements, inputs_.world.value);
    verdict.ready = {Phase::finish, 0};
    verdict.needed = {Phase::commit, 0};
    entries.push_back(std::move(verdict));
    const UnitPass all{Pass::forward, 0, 0, static_cast<int>(inputs_.units.size())};
    for (const int unit : sweep(all, [&](const Unit& u) { return is_reduced(u); })) {
      const auto placements = placements_in(program_, inputs_.units[unit]);
      const auto moves = TRY(redistributions(placements.optimizer, placements.parameters));
      if (std::any_of(moves.begin(), moves.end(),
                      [](const auto& move) { return move.what != Redistribution::all_gather; })) {
        return fail(Errc::invalid_argument,
                    "parameters are sharded along an axis that the optimizer is not sharded along; shard the "
                    "optimizer wherever parameters are");
      }
      ProgramEntry entry;
      entry.ready = {Phase::update, unit};
      entry.needed =
          inputs_.overlap ? TrainerPoint{Phase::next_forward, unit} : TrainerPoint{Phase::step_end, 0};
      add_growing(unit, placements.optimizer, moves, true, entry, entries);
    }
    return entries;
  }

  Result<void> add_operations() {
    for (const TrainerOperation& one : inputs_.operations) {
      if (one.group == GroupKind::tp || one.group == GroupKind::cp || one.group == GroupKind::ep) continue;
      return fail(Errc::invalid_argument,
                  "{} is declared, but members of {} may have lanes in other rounds; operations are declared "
                  "on tp, cp and ep",
                  describe(one), name_of(one.group));
    }
    TRY(check_operations(inputs_.operations, program_.clock(), program_.unit_count()));
    program_.operations = fold(inputs_.operations);
    return {};
  }

  const ProgramInputs& inputs_;
  Reductions reductions_;
  Program program_;
  RecipePlanner recipes_;
};

Result<void> ProgramPlanner::check_domains(const ProgramInputs& inputs, const std::vector<int>& coordinates) {
  const auto axes = inputs.placements.parameters.size();
  if (inputs.domains.empty()) return fail(Errc::invalid_argument, "a program has at least one domain");
  for (const Domain& domain : inputs.domains) {
    if (domain.axes.size() != axes || domain.sizes.size() != axes) {
      return fail(Errc::invalid_argument, "placements are over {} axes, but a domain has {}", axes,
                  domain.axes.size());
    }
    const auto& at = &domain == &inputs.domains[0] ? coordinates : std::vector<int>(axes, 0);
    for (const Placements* role :
         {&inputs.placements.parameters, &inputs.placements.gradients, &inputs.placements.optimizer}) {
      TRY(local_range(0, *role, domain.sizes, at));
    }
  }
  if (has(inputs.placements.parameters, Placement::partial) ||
      has(inputs.placements.optimizer, Placement::partial) || has(inputs.placements.gradients, R)) {
    return fail(Errc::invalid_argument,
                "parameters and optimizer are replicated or sharded, gradients are partial or sharded");
  }
  return {};
}

Result<void> ProgramPlanner::check_classes(const ProgramInputs& inputs) {
  for (const TensorClass& tensor_class : inputs.classes) {
    TRY(check_gathered(tensor_class));
    const auto& also = tensor_class.also_sum;
    if (!also) continue;
    const bool is_axis = std::any_of(inputs.domains.begin(), inputs.domains.end(), [&](const Domain& domain) {
      return std::find(domain.axes.begin(), domain.axes.end(), also->group) != domain.axes.end();
    });
    if (also->group == GroupKind::world || is_axis || also->members < 2) {
      return fail(Errc::invalid_argument,
                  "gradients cannot also be summed over {} with {} members; choose a group of two or more "
                  "ranks that keep the same values besides the data-parallel ones",
                  name_of(also->group), also->members);
    }
  }
  return {};
}

Result<void> ProgramPlanner::check_unit(const ProgramInputs& inputs, std::size_t index) {
  const Unit& unit = inputs.units[index];
  for (const FlatTensor& tensor : unit.tensors) {
    if (tensor.tensor_class >= inputs.classes.size()) {
      return fail(Errc::invalid_argument, "unit {} has a tensor of class {}, but there are {} classes", index,
                  tensor.tensor_class, inputs.classes.size());
    }
    const TensorClass& tensor_class = inputs.classes[tensor.tensor_class];
    if (tensor_class.domain >= inputs.domains.size()) {
      return fail(Errc::invalid_argument, "class {} is in domain {}, but there are {} domains",
                  tensor.tensor_class, tensor_class.domain, inputs.domains.size());
    }
    const auto& sizes = inputs.domains[tensor_class.domain].sizes;
    std::int64_t shards = 1;
    for (const Placements* role :
         {&inputs.placements.parameters, &inputs.placements.gradients, &inputs.placements.optimizer}) {
      shards = std::max(shards, shard_count(*role, sizes));
    }
    if (tensor_class.gathered && tensor.elements % (shards * tensor_class.part_multiple()) != 0) {
      return fail(Errc::invalid_argument,
                  "unit {} has a tensor of {} elements, of which {} shards are not multiples of {} elements "
                  "each; lay it out with padding for shards of whole blocks",
                  index, tensor.elements, shards, tensor_class.part_multiple());
    }
    if (tensor_class.gathered && !tensor.trainable) {
      return fail(Errc::invalid_argument,
                  "unit {} has frozen parameters that are gathered as {}; they have no main values, so "
                  "gather them as they are stored",
                  index, name_of(*tensor_class.gathered));
    }
    if (tensor.elements < 0 || tensor.elements % shards != 0) {
      return fail(Errc::invalid_argument,
                  "unit {} has a tensor of {} elements, not divisible by its {} shards; lay it out "
                  "with padding for {} shards",
                  index, tensor.elements, shards, shards);
    }
    if (unit.use == UnitUse::forward && tensor.trainable) {
      return fail(Errc::invalid_argument,
                  "unit {} has trainable parameters, but no backward; freeze them or let backward pass",
                  index);
    }
    if (inputs.numerics == Numerics::fast || !tensor.trainable) continue;
    if (tensor_class.gradient != DType::f32) {
      return fail(Errc::invalid_argument,
                  "ordered numerics sum in f32, but gradients of unit {} are {}; keep them in f32 or choose "
                  "fast numerics",
                  index, name_of(tensor_class.gradient));
    }
  }
  return {};
}

Result<UnitOrder> ProgramPlanner::order_of(const ProgramInputs& inputs) {
  if (inputs.order.empty() || inputs.passes.empty()) {
    return normalised(inputs.order, static_cast<int>(inputs.units.size()));
  }
  return fail(Errc::invalid_argument,
              "units of a list of passes come in the order of their numbers, but another order is given; "
              "number units by their use");
}

Result<void> ProgramPlanner::check(const ProgramInputs& inputs, const std::vector<int>& coordinates) {
  TRY(check_domains(inputs, coordinates));
  TRY(check_classes(inputs));
  for (std::size_t i = 0; i < inputs.units.size(); ++i) TRY(check_unit(inputs, i));
  if (inputs.parameter_credits < 1 || inputs.gradient_credits < 1) {
    return fail(Errc::invalid_argument, "pools have at least 1 slot, not {} and {}", inputs.parameter_credits,
                inputs.gradient_credits);
  }
  if (inputs.verdict_elements < 1 || inputs.staging_elements < 0) {
    return fail(Errc::invalid_argument,
                "a verdict has at least 1 element and staging 0 or more, not {} and {}",
                inputs.verdict_elements, inputs.staging_elements);
  }
  return {};
}

}  // namespace

Result<ProgramInputs> inputs_of(Strategy strategy, const Mesh& mesh) {
  ProgramInputs inputs;
  // A strategy of two axes has the copies of the mesh as its outer one.
  const auto table = TRY(placements_of(strategy));
  const int copies = table.optimizer.size() > 1 ? 1 : mesh.sizes().optimizer_instances;
  inputs.placements = TRY(placements_of(strategy, copies));
  const auto axes = inputs.placements.parameters.size();
  for (const auto rule : {ScaleRule::dense, ScaleRule::expert})
    inputs.domains.push_back(TRY(domain_of(mesh, rule, axes)));
  inputs.world = mesh.world();
  inputs.lanes = static_cast<int>(std::accumulate(inputs.domains[0].sizes.begin(),
                                                  inputs.domains[0].sizes.end(), 1, std::multiplies<>()));
  inputs.pieces.of_lane = mesh.sizes().cp;
  inputs.lanes /= inputs.pieces.of_lane;
  return inputs;
}

Result<LaneDeal> deal_of(const ProgramInputs& inputs) {
  return LaneDeal::create(inputs.lanes, inputs.placements.gradients, inputs.domains[0].sizes,
                          inputs.pieces.of_rank, inputs.pieces.of_lane);
}

Result<int> rounds_of(const ProgramInputs& inputs, const std::vector<int>& coordinates) {
  const auto deal = TRY(deal_of(inputs));
  auto longest = coordinates;
  for (std::size_t axis = 0; axis < longest.size(); ++axis) {
    if (inputs.placements.parameters[axis] == F || inputs.placements.gradients[axis] == F) longest[axis] = 0;
  }
  return deal.dealt(longest).count;
}

Result<Program> plan_program(const ProgramInputs& inputs, const std::vector<int>& coordinates) {
  return ProgramPlanner::plan(inputs, coordinates);
}

}  // namespace troupe::core
