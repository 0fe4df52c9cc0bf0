#include "tests/simulation/scripted_job.hpp"

#include <bit>
#include <cmath>

#include "actors/planes/step/training_plan.hpp"
#include "core/errors.hpp"
#include "core/optimizer/parameter_groups.hpp"
#include "gpu/kernels.hpp"
#include "tests/support/mx_reference.hpp"

namespace troupe::actors {

namespace {

float load(Session& session, std::uint32_t p, std::size_t i) {
  const auto dtype = session.plan().specs[{p}].dtype;
  if (dtype == core::DType::f32) return session.parameter({p}).value()[i];
  const auto bits = session.parameter<std::uint16_t>({p}).value()[i];
  return dtype == core::DType::f16 ? core::f16_to_float(bits) : core::bf16_to_float(bits);
}

void add_gradient(Session& session, std::uint32_t p, std::optional<int> source, std::size_t i, float value) {
  const auto& plan = session.plan();
  if (plan.buffers[plan.parameters[{p}].buffer].gradient_dtype == core::DType::f32) {
    session.gradient({p}, source).value()[i] += value;
  } else {
    auto& bits = session.gradient<std::uint16_t>({p}, source).value()[i];
    bits = core::float_to_bf16(core::bf16_to_float(bits) + value);
  }
}

std::size_t elements_of(const core::ParameterSpec& spec) {
  return static_cast<std::size_t>(spec.elements());
}

core::Result<void> run_lane(SimulatedRank& rank, Session& session, const Script& script, core::Lane lane) {
  const auto& training = session.training();
  const int pieces = training.pieces_of_lane() / training.context_parallel;
  const int first = rank.rank().value % training.context_parallel * pieces;
  TRY(session.begin_lane(lane));
  const auto scale = static_cast<float>(session.loss_scale());
  for (int m = 0; m < session.training().microbatches; ++m) {
    TRY(session.begin_microbatch(m));
    // Forward reads what comes and goes by units; other trainers here are backward alone.
    for (std::uint32_t p = 0; session.units() > 0 && p < script.parameters.size(); ++p)
      TRY(session.before_use({p}));
    TRY(session.begin_backward());
    for (auto p = static_cast<std::uint32_t>(script.parameters.size()); p-- > 0;) {
      TRY(session.before_use({p}));
      rank.compute(script.backward_time);
      GradientPlace place{session.next_step(), lane, m, p, 0, first};
      if (!script.parameters[p].trainable) continue;
      for (int use = script.uses(place); use > 0; --use) {
        for (int own = 0; own < pieces; ++own) {
          place.piece = first + own;
          const auto source = pieces > 1 ? std::optional(own) : std::nullopt;
          for (place.element = 0; place.element < elements_of(script.parameters[p]); ++place.element)
            add_gradient(session, p, source, place.element, scale * script.gradient(place));
        }
        TRY(session.gradient_ready({p}));
        if (use > 1) rank.compute(script.backward_time);
      }
    }
  }
  std::vector<PieceLoss> losses;
  for (int own = 0; own < pieces; ++own)
    losses.push_back({static_cast<double>(lane.value + 100 * (first + own))});
  losses.resize(losses.size() + static_cast<std::size_t>(script.losses_too_many));
  return session.end_lane(losses);
}

core::Result<Values> read_values(Session& session, const Script& script) {
  Values values;
  TRY(session.begin_evaluation());
  for (std::uint32_t p = 0; p < script.parameters.size(); ++p) {
    TRY(session.before_use({p}));
    auto& parameter = values.emplace_back();
    for (std::size_t i = 0; i < elements_of(script.parameters[p]); ++i) {
      parameter.push_back(load(session, p, i));
    }
  }
  TRY(session.end_evaluation());
  return values;
}

core::Result<void> initialise(Session& session, const Script& script) {
  for (std::uint32_t p = 0; p < script.parameters.size(); ++p) {
    TRY(session.write_parameter({p}, [&](std::int64_t first, std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = script.initial(p, static_cast<std::size_t>(first) + i);
    }));
  }
  return {};
}

core::Result<ScriptResult> run_script(SimulatedRank& rank, const Script& script) {
  auto session = TRY(Session::join(rank, script.session, script.parameters));
  if (script.restore) {
    if (!TRY(session->restore())) return core::fail(core::Errc::not_found, "there is no checkpoint");
  } else {
    TRY(initialise(*session, script));
  }
  ScriptResult result;
  while (session->next_step().value < script.steps) {
    TRY(session->begin_step(script.rate ? script.rate(rank.rank(), session->next_step())
                                        : script.learning_rate));
    result.loss_scales.push_back(session->loss_scale());
    for (core::Lane lane : session->lanes()) TRY(run_lane(rank, *session, script, lane));
    auto refusal = script.refusal(rank.rank(), session->next_step());
    result.outcomes.push_back(TRY(session->finish_step(refusal)));
    result.after.push_back(TRY(read_values(*session, script)));
    if (session->next_step().value != script.save_after) continue;
    TRY(session->save());
    TRY(session->wait_saves());
    for (const auto& save : session->take_saves()) TRY(save.committed);
  }
  result.device_bytes = session->device_bytes();
  TRY(session->leave());
  result.trace = session->take_trace();
  return result;
}

/// The sum of the lanes [first, first + size) of the tree, for size a power of two.
float sum_lanes(const std::vector<float>& lanes, std::size_t first, std::size_t size) {
  if (size == 1) return lanes[first];
  float left = sum_lanes(lanes, first, size / 2);
  if (first + size / 2 >= lanes.size()) return left;
  return left + sum_lanes(lanes, first + size / 2, size / 2);
}

struct Moments {
  float first = 0;
  float second = 0;
};

/// The optimizers as PyTorch's documentation gives them; factors of a whole step in double, elements in
/// float.
float optimized(const core::OptimizerSettings& o, double rate, int step, float value, float gradient,
                Moments& m, bool decays) {
  auto narrow = [](double factor) { return static_cast<float>(factor); };
  const float decay = decays ? narrow(o.weight_decay) : 0.0F;
  if (o.kind == core::OptimizerKind::adamw || o.kind == core::OptimizerKind::lion) {
    value = value * narrow(1 - rate * (decays ? o.weight_decay : 0.0));
  } else if (decay != 0) {
    gradient = gradient + decay * value;
  }
  if (o.kind == core::OptimizerKind::sgd) {
    if (o.momentum != 0) gradient = m.first = narrow(o.momentum) * m.first + gradient;
    return value + narrow(-rate) * gradient;
  }
  if (o.kind == core::OptimizerKind::lion) {
    const float direction = narrow(o.beta1) * m.first + narrow(1 - o.beta1) * gradient;
    m.first = narrow(o.beta2) * m.first + narrow(1 - o.beta2) * gradient;
    return direction == 0 ? value : value + (direction > 0 ? narrow(-rate) : narrow(rate));
  }
  m.first = m.first + narrow(1 - o.beta1) * (gradient - m.first);
  m.second = m.second * narrow(o.beta2) + narrow(1 - o.beta2) * gradient * gradient;
  const float denominator =
      std::sqrt(m.second) / narrow(std::sqrt(1 - std::pow(o.beta2, step))) + narrow(o.epsilon);
  return value + narrow(-(rate / (1 - std::pow(o.beta1, step)))) * m.first / denominator;
}

float summed_gradient(const Script& script, GradientPlace place) {
  const auto& training = script.session.training;
  std::vector<float> pieces;
  for (place.piece = 0; place.piece < training.pieces_of_lane(); ++place.piece) {
    std::vector<float> lanes;
    for (int lane = 0; lane < training.lanes; ++lane) {
      float sum = 0;
      for (int m = 0; m < training.microbatches; ++m) {
        place.lane = {lane};
        place.microbatch = m;
        for (int use = script.uses(place); use > 0; --use) sum += script.gradient(place);
      }
      lanes.push_back(rounded(training.wire_dtype, sum));
    }
    pieces.push_back(sum_lanes(lanes, 0, std::bit_ceil(lanes.size())));
  }
  const float sum = sum_lanes(pieces, 0, std::bit_ceil(pieces.size()));
  if (!training.average) return sum;
  return sum * (1.0F / static_cast<float>(training.lanes * training.microbatches));
}

}  // namespace

JobOutcome<ScriptResult> simulate_script(SimulationOptions simulation, const Script& script) {
  return simulate_job<ScriptResult>(std::move(simulation),
                                    [&](SimulatedRank& rank) { return run_script(rank, script); });
}

JobOutcome<ScriptResult> simulate_script(int ranks, const Script& script, std::uint64_t seed) {
  SimulationOptions simulation;
  simulation.ranks = {ranks};
  simulation.seed = seed;
  return simulate_script(std::move(simulation), script);
}

float rounded(core::DType dtype, float value) {
  if (dtype == core::DType::f16) return core::f16_to_float(core::float_to_f16(value));
  return dtype == core::DType::f32 ? value : core::bf16_to_float(core::float_to_bf16(value));
}

namespace {

/// Muon steps whole matrices; its kernel has tests of its own.
void step_matrix(const core::GroupSettings& group, const core::ParameterSpec& spec, double rate,
                 std::vector<float>& gradient, std::vector<float>& master, std::vector<float>& momentum) {
  const auto& o = group.optimizer;
  const gpu::MatrixShape shape{static_cast<std::size_t>(spec.shape[0]),
                               static_cast<std::size_t>(spec.shape[1])};
  std::vector<std::byte> scratch(gpu::muon_scratch_bytes(shape));
  gpu::muon_step({.learning_rate = rate,
                  .momentum = o.momentum,
                  .weight_decay = spec.weight_decay ? o.weight_decay : 0,
                  .nesterov = o.nesterov,
                  .scale = core::muon_scale(o.scale, spec.shape[0], spec.shape[1]),
                  .steps = o.newton_schulz_steps,
                  .coefficients = o.coefficients,
                  .epsilon = o.epsilon},
                 shape,
                 {.gradient = {gpu::view_of(std::span<const float>(gradient)), core::DType::f32},
                  .master = gpu::view_of(std::span<float>(master)),
                  .parameter = {}},
                 gpu::view_of(std::span<float>(momentum)), {scratch.data(), scratch.size()});
}

bool is_finite(const Script& script, core::Step step) {
  for (std::uint32_t p = 0; p < script.parameters.size(); ++p) {
    for (std::size_t i = 0; script.parameters[p].trainable && i < elements_of(script.parameters[p]); ++i) {
      if (!std::isfinite(summed_gradient(script, {step, {}, 0, p, i}))) return false;
    }
  }
  return true;
}

}  // namespace

Values expected_values(const Script& script) {
  std::vector<core::Step> steps;
  for (core::Step step{0}; step.value < script.steps; ++step.value) {
    if (is_finite(script, step)) steps.push_back(step);
  }
  const auto groups = core::parameter_groups(script.session.training, script.parameters).value();
  Values values;
  for (std::uint32_t p = 0; p < script.parameters.size(); ++p) {
    const auto& spec = script.parameters[p];
    const auto& group = groups[spec.group];
    const double rate = script.learning_rate * group.learning_rate_factor;
    const auto count = elements_of(spec);
    std::vector<float> master(count), gradient(count), momentum(count);
    std::vector<Moments> moments(count);
    const auto first_dtype = spec.gather_dtype ? spec.dtype : core::DType::f32;
    for (std::size_t i = 0; i < count; ++i) master[i] = rounded(first_dtype, script.initial(p, i));
    for (std::size_t step = 0; spec.trainable && step < steps.size(); ++step) {
      for (std::size_t i = 0; i < count; ++i)
        gradient[i] = summed_gradient(script, {steps[step], {}, 0, p, i});
      if (group.optimizer.kind == core::OptimizerKind::muon) {
        step_matrix(group, spec, rate, gradient, master, momentum);
        continue;
      }
      const bool is_later = static_cast<std::int64_t>(step) >= script.save_after;
      const auto missed = is_later && !script.steps_missed.empty() ? script.steps_missed[p] : 0;
      for (std::size_t i = 0; i < count; ++i) {
        master[i] = optimized(group.optimizer, rate, static_cast<int>(step + 1 - missed), master[i],
                              gradient[i], moments[i], spec.weight_decay);
      }
    }
    if (spec.gather_dtype) master = tests::reference_mx(*spec.gather_dtype, master).values;
    for (float& value : master) value = rounded(spec.dtype, value);
    values.push_back(std::move(master));
  }
  return values;
}

}  // namespace troupe::actors
