#include "actors/session/c/troupe.h"

#include <chrono>
#include <memory>
#include <span>
#include <utility>

#include "actors/session/c/calls.hpp"
#include "actors/session/c/options.hpp"
#include "actors/shell/rank_world.hpp"
#include "core/errors.hpp"
#include "gpu/device.hpp"

using troupe::actors::c::call;
using troupe::actors::c::copy_text;
using troupe::actors::c::missing;
using troupe::actors::c::with;
using troupe::core::Errc;
using troupe::core::Error;
using troupe::core::fail;
using troupe::core::ParameterIndex;
using troupe::core::Result;

namespace {

static_assert(static_cast<int>(Errc::invalid_argument) + 1 == TROUPE_INVALID_ARGUMENT);
static_assert(static_cast<int>(Errc::mismatch) + 1 == TROUPE_MISMATCH);
static_assert(static_cast<int>(Errc::internal) + 1 == TROUPE_INTERNAL);

template <class Memory>
Result<void> give(const Memory& memory, void** data, std::size_t* bytes) {
  if (data == nullptr) return missing("data");
  *data = memory.data();
  if (bytes != nullptr) *bytes = memory.size_bytes();
  return {};
}

Result<void> give(const troupe::gpu::BufferView& memory, void** data, std::size_t* bytes) {
  if (data == nullptr) return missing("data");
  *data = memory.data;
  if (bytes != nullptr) *bytes = memory.bytes;
  return {};
}

}  // namespace

int troupe_c_version(void) {
  return TROUPE_C_VERSION;
}

troupe_status troupe_session_join(const troupe_options* options, troupe_session** session,
                                  troupe_error* error) {
  return call(error, [&]() -> Result<void> {
    if (options == nullptr) return missing("options");
    if (session == nullptr) return missing("session");
    auto made = std::make_unique<troupe_session>();
    made->world = TRY(troupe::actors::ProcessWorld::create(options->world));
    made->session = TRY(troupe::actors::Session::join(*made->world, options->session, options->parameters));
    *session = made.release();
    return {};
  });
}

troupe_status troupe_session_join_again(const troupe_options* options, troupe_session** session,
                                        troupe_error* error) {
  return call(error, [&]() -> Result<void> {
    if (options == nullptr) return missing("options");
    if (session == nullptr || *session == nullptr) return missing("session");
    if (error == nullptr) return missing("error");
    if (error->status <= TROUPE_OK || error->status > TROUPE_INTERNAL)
      return fail(Errc::invalid_argument, "no call has failed with this error, whose status is {}",
                  static_cast<int>(error->status));
    Error why{static_cast<Errc>(error->status - 1), error->message};
    auto made = std::make_unique<troupe_session>();
    made->world = std::move((*session)->world);
    troupe_session_free(std::exchange(*session, nullptr));
    while (!made->session) {
      TRY(made->world->form_anew(why));
      auto joined = troupe::actors::Session::join(*made->world, options->session, options->parameters);
      if (joined)
        made->session = *std::move(joined);
      else
        why = std::move(joined).error();
    }
    *session = made.release();
    return {};
  });
}

void troupe_session_free(troupe_session* session) {
  if (session == nullptr) return;
  session->session.reset();
  delete session;
}

int32_t troupe_rank(const troupe_session* session) {
  return session == nullptr ? -1 : session->session->rank().value;
}

int32_t troupe_world_size(const troupe_session* session) {
  return session == nullptr ? 0 : session->session->world_size().value;
}

int32_t troupe_lane_count(const troupe_session* session) {
  return session == nullptr ? 0 : static_cast<std::int32_t>(session->session->lanes().size());
}

int32_t troupe_lane(const troupe_session* session, int32_t index) {
  if (session == nullptr) return -1;
  const auto lanes = session->session->lanes();
  const auto place = static_cast<std::size_t>(index);
  return index < 0 || place >= lanes.size() ? -1 : lanes[place].value;
}

int64_t troupe_next_step(const troupe_session* session) {
  return session == nullptr ? -1 : session->session->next_step().value;
}

uint32_t troupe_parameter_count(const troupe_session* session) {
  return session == nullptr ? 0 : static_cast<std::uint32_t>(session->session->parameters().size());
}

uint32_t troupe_unit_count(const troupe_session* session) {
  return session == nullptr ? 0 : session->session->units();
}

troupe_status troupe_write_parameter(troupe_session* session, uint32_t parameter,
                                     void (*fill)(int64_t first, float* values, size_t count, void* context),
                                     void* context, troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    if (fill == nullptr) return missing("fill");
    return s.write_parameter({parameter}, [&](std::int64_t first, std::span<float> values) {
      fill(first, values.data(), values.size(), context);
    });
  });
}

troupe_status troupe_read_state(troupe_session* session, uint32_t parameter, const char* state,
                                void (*take)(int64_t first, const float* values, size_t count, void* context),
                                void* context, troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    if (state == nullptr || take == nullptr) return missing(take == nullptr ? "take" : "state");
    return s.read_state({parameter}, state, [&](std::int64_t first, std::span<const float> values) {
      take(first, values.data(), values.size(), context);
    });
  });
}

troupe_status troupe_write_state(troupe_session* session, uint32_t parameter, const char* state,
                                 void (*fill)(int64_t first, float* values, size_t count, void* context),
                                 void* context, troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    if (state == nullptr || fill == nullptr) return missing(fill == nullptr ? "fill" : "state");
    return s.write_state({parameter}, state, [&](std::int64_t first, std::span<float> values) {
      fill(first, values.data(), values.size(), context);
    });
  });
}

troupe_status troupe_steps_taken(troupe_session* session, int64_t* steps, size_t count, troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    if (steps == nullptr) return missing("steps");
    const auto taken = TRY(s.steps_taken());
    if (count != taken.size())
      return fail(Errc::invalid_argument, "expected room for the steps of {} parameters, found it for {}",
                  taken.size(), count);
    std::copy(taken.begin(), taken.end(), steps);
    return {};
  });
}

troupe_status troupe_write_steps_taken(troupe_session* session, const int64_t* steps, size_t count,
                                       troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    if (steps == nullptr) return missing("steps");
    return s.write_steps_taken({steps, count});
  });
}

troupe_status troupe_begin_step(troupe_session* session, double learning_rate, troupe_error* error) {
  return with(session, error, [&](auto& s) { return s.begin_step(learning_rate); });
}

troupe_status troupe_begin_lane(troupe_session* session, int32_t lane, troupe_error* error) {
  return with(session, error, [&](auto& s) { return s.begin_lane({lane}); });
}

double troupe_loss_scale(const troupe_session* session) {
  return session == nullptr ? 1 : session->session->loss_scale();
}

troupe_status troupe_begin_microbatch(troupe_session* session, int32_t index, troupe_error* error) {
  return with(session, error, [&](auto& s) { return s.begin_microbatch(index); });
}

troupe_status troupe_begin_pass(troupe_session* session, size_t pass, troupe_error* error) {
  return with(session, error, [&](auto& s) { return s.begin_pass(pass); });
}

troupe_status troupe_acquire(troupe_session* session, uint32_t unit, troupe_error* error) {
  return with(session, error, [&](auto& s) { return s.acquire({unit}); });
}

troupe_status troupe_release(troupe_session* session, uint32_t unit, troupe_error* error) {
  return with(session, error, [&](auto& s) { return s.release({unit}); });
}

troupe_status troupe_begin_backward(troupe_session* session, troupe_error* error) {
  return with(session, error, [](auto& s) { return s.begin_backward(); });
}

troupe_status troupe_before_use(troupe_session* session, uint32_t parameter, troupe_error* error) {
  return with(session, error, [&](auto& s) { return s.before_use({parameter}); });
}

troupe_status troupe_parameter(troupe_session* session, uint32_t parameter, void** data, size_t* bytes,
                               troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    return give(TRY(s.template parameter<std::byte>(ParameterIndex{parameter})), data, bytes);
  });
}

troupe_status troupe_gradient(troupe_session* session, uint32_t parameter, void** data, size_t* bytes,
                              troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    return give(TRY(s.template gradient<std::byte>(ParameterIndex{parameter})), data, bytes);
  });
}

troupe_status troupe_sources(troupe_session* session, uint32_t parameter, int32_t* count,
                             troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    if (count == nullptr) return missing("count");
    *count = TRY(s.sources({parameter}));
    return {};
  });
}

troupe_status troupe_gradient_of_source(troupe_session* session, uint32_t parameter, int32_t source,
                                        void** data, size_t* bytes, troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    return give(TRY(s.template gradient<std::byte>(ParameterIndex{parameter}, source)), data, bytes);
  });
}

troupe_status troupe_parameter_memory(troupe_session* session, uint32_t parameter, void** data, size_t* bytes,
                                      troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    return give(TRY(s.parameter_memory({parameter})), data, bytes);
  });
}

troupe_status troupe_gradient_memory(troupe_session* session, uint32_t parameter, void** data, size_t* bytes,
                                     troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    return give(TRY(s.gradient_memory({parameter})), data, bytes);
  });
}

troupe_status troupe_gradient_memory_of_source(troupe_session* session, uint32_t parameter, int32_t source,
                                               void** data, size_t* bytes, troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    return give(TRY(s.gradient_memory({parameter}, source)), data, bytes);
  });
}

troupe_status troupe_on_compute_stream(troupe_session* session, int (*launch)(void* stream, void* context),
                                       void* context, troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    if (launch == nullptr) return missing("launch");
    // With a compute stream waits order that stream, not the thread on which a trainer without one computes.
    troupe::actors::RankWorld& world = *session->world;
    if (world.device().kind() == troupe::gpu::DeviceKind::cuda) {
      auto* const stream = TRY(s.compute_stream());
      if (stream->run_native("trainer", [&](void* native) { return launch(native, context); })) return {};
    }
    return fail(Errc::unavailable, "this device has no streams of its own: compute on the trainer's thread");
  });
}

troupe_status troupe_gradient_ready(troupe_session* session, uint32_t parameter, troupe_error* error) {
  return with(session, error, [&](auto& s) { return s.gradient_ready({parameter}); });
}

troupe_status troupe_end_lane(troupe_session* session, double loss, troupe_error* error) {
  return with(session, error, [&](auto& s) { return s.end_lane(loss); });
}

troupe_status troupe_end_weighted_lane(troupe_session* session, double loss, double weight,
                                       troupe_error* error) {
  return with(session, error, [&](auto& s) { return s.end_lane(loss, weight); });
}

troupe_status troupe_finish_step(troupe_session* session, const char* refusal, uint32_t wishes,
                                 troupe_step_outcome* outcome, troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    const auto step = TRY(s.finish_step(refusal == nullptr ? "" : refusal, wishes));
    if (outcome == nullptr) return {};
    const auto seconds = [](auto time) { return std::chrono::duration<double>(time).count(); };
    outcome->step = step.step.value;
    outcome->committed = step.committed ? 1 : 0;
    outcome->wishes = step.wishes;
    outcome->loss = step.loss;
    outcome->weight = step.weight;
    outcome->gradient_norm = step.gradient_norm;
    outcome->clip_factor = step.clip_factor;
    outcome->seconds = seconds(step.times.total);
    outcome->waited_seconds = seconds(step.times.exposed);
    outcome->loss_scale = step.loss_scale;
    outcome->nonfinite_gradients = step.nonfinite_gradients;
    copy_text(outcome->reason, step.reason);
    return {};
  });
}

troupe_status troupe_publish_all(troupe_session* session, troupe_error* error) {
  return with(session, error, [](auto& s) { return s.publish_all(); });
}

troupe_status troupe_begin_evaluation(troupe_session* session, troupe_error* error) {
  return with(session, error, [](auto& s) { return s.begin_evaluation(); });
}

troupe_status troupe_end_evaluation(troupe_session* session, troupe_error* error) {
  return with(session, error, [](auto& s) { return s.end_evaluation(); });
}

troupe_status troupe_begin_learning(troupe_session* session, troupe_error* error) {
  return with(session, error, [](auto& s) { return s.begin_learning(); });
}

troupe_status troupe_end_learning(troupe_session* session, troupe_error* error) {
  return with(session, error, [](auto& s) -> Result<void> {
    TRY(s.end_learning());
    return {};
  });
}

troupe_status troupe_leave(troupe_session* session, troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    TRY(s.leave());
    session->is_left = true;
    return {};
  });
}

void troupe_abandon(troupe_session* session, const char* reason, troupe_error* error) {
  with(session, error, [&](auto& s) -> Result<void> {
    return tl::unexpected(s.abandon({Errc::aborted, reason == nullptr ? "the trainer gave up" : reason}));
  });
}
