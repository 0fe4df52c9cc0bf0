#include "actors/session/c/troupe.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>

#include "actors/session/c/calls.hpp"
#include "actors/session/c/options.hpp"
#include "actors/shell/rank_world.hpp"
#include "actors/world/environment.hpp"
#include "core/errors.hpp"
#include "core/values/value_text.hpp"
#include "gpu/device.hpp"

using troupe::actors::c::call;
using troupe::actors::c::copy_text;
using troupe::actors::c::dtype_of;
using troupe::actors::c::missing;
using troupe::actors::c::with;
using troupe::core::Errc;
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

constexpr std::uint32_t kParameterFlags =
    TROUPE_NO_WEIGHT_DECAY | TROUPE_SHARED_EMBEDDING | TROUPE_EXPERT | TROUPE_COPY;

/// What parameters may have.
Result<troupe::core::DType> parameter_dtype_of(troupe_dtype dtype) {
  if (dtype == TROUPE_F32 || dtype == TROUPE_F16 || dtype == TROUPE_BF16) return dtype_of(dtype);
  return fail(Errc::invalid_argument,
              "{} is not a dtype of parameters; use TROUPE_F32, TROUPE_F16 or TROUPE_BF16",
              static_cast<int>(dtype));
}

/// The parameter of that number.
Result<troupe::core::ParameterSpec*> added(troupe_options* options, std::uint32_t parameter) {
  if (options == nullptr) return tl::unexpected(missing("options").error());
  const std::size_t count = options->parameters.size();
  if (parameter < count) return &options->parameters[parameter];
  return fail(Errc::invalid_argument, "there is no parameter {}: {} were added; add it first", parameter,
              count);
}

}  // namespace

int troupe_c_version(void) {
  return TROUPE_C_VERSION;
}

troupe_options* troupe_options_new(void) {
  return new (std::nothrow) troupe_options;
}

void troupe_options_free(troupe_options* options) {
  delete options;
}

troupe_status troupe_options_set(troupe_options* options, const char* name, const char* value,
                                 troupe_error* error) {
  return call(error, [&]() -> Result<void> {
    if (options == nullptr) return missing("options");
    if (name == nullptr) return missing("name");
    if (value == nullptr) return missing("value");
    return troupe::actors::set_option(*options, name, value);
  });
}

const char* troupe_option_names(void) {
  return troupe::actors::option_names().c_str();
}

troupe_status troupe_options_add_parameter(troupe_options* options, const char* name, const int64_t* shape,
                                           size_t axes, troupe_dtype dtype, uint32_t flags,
                                           troupe_error* error) {
  return call(error, [&]() -> Result<void> {
    if (options == nullptr) return missing("options");
    if (name == nullptr) return missing("name");
    if (shape == nullptr && axes > 0) return missing("shape");
    if ((flags & ~kParameterFlags) != 0)
      return fail(Errc::invalid_argument, "parameter {} has unknown flags: {:#x}", name, flags);
    troupe::core::ParameterSpec parameter;
    parameter.name = name;
    parameter.shape.assign(shape, shape + axes);
    parameter.dtype = TRY(parameter_dtype_of(dtype));
    parameter.weight_decay = (flags & TROUPE_NO_WEIGHT_DECAY) == 0;
    parameter.shared_embedding = (flags & TROUPE_SHARED_EMBEDDING) != 0;
    parameter.is_expert = (flags & TROUPE_EXPERT) != 0;
    parameter.is_copy = (flags & TROUPE_COPY) != 0;
    options->parameters.push_back(std::move(parameter));
    return {};
  });
}

troupe_status troupe_options_set_unit(troupe_options* options, uint32_t parameter, uint32_t unit,
                                      troupe_error* error) {
  return call(error, [&]() -> Result<void> {
    TRY(added(options, parameter))->unit = troupe::core::UnitIndex{unit};
    return {};
  });
}

troupe_status troupe_options_set_gather_dtype(troupe_options* options, uint32_t parameter, const char* dtype,
                                              troupe_error* error) {
  return call(error, [&]() -> Result<void> {
    if (dtype == nullptr) return missing("dtype");
    TRY(added(options, parameter))->gather_dtype = TRY(troupe::core::dtype_from_name(dtype));
    return {};
  });
}

troupe_status troupe_place(const troupe_options* options, int32_t* rank, int32_t* world_size,
                           troupe_error* error) {
  return call(error, [&]() -> Result<void> {
    if (options == nullptr) return missing("options");
    const auto& given = options->world.environment;
    const auto found =
        TRY(given ? given() : troupe::actors::detect_environment(troupe::actors::process_variables()));
    if (rank != nullptr) *rank = found.rank.value;
    if (world_size != nullptr) *world_size = found.world.value;
    return {};
  });
}

troupe_status troupe_options_set_part(troupe_options* options, uint32_t parameter,
                                      const int64_t* global_shape, const int64_t* offset, size_t axes,
                                      troupe_error* error) {
  return call(error, [&]() -> Result<void> {
    if (global_shape == nullptr && axes > 0) return missing("global_shape");
    if (offset == nullptr && axes > 0) return missing("offset");
    auto* const part = TRY(added(options, parameter));
    if (axes != part->shape.size())
      return fail(Errc::invalid_argument,
                  "parameter {} has {} axes, found a whole of {}; give one extent and one offset per axis",
                  part->name, part->shape.size(), axes);
    part->global_shape.assign(global_shape, global_shape + axes);
    part->offset.assign(offset, offset + axes);
    return {};
  });
}

troupe_status troupe_options_set_also_sum(troupe_options* options, uint32_t parameter, const char* group,
                                          troupe_error* error) {
  return call(error, [&]() -> Result<void> {
    if (group == nullptr) return missing("group");
    TRY(added(options, parameter))->also_sum = group;
    return {};
  });
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

troupe_status troupe_begin_step(troupe_session* session, double learning_rate, troupe_error* error) {
  return with(session, error, [&](auto& s) { return s.begin_step(learning_rate); });
}

troupe_status troupe_begin_lane(troupe_session* session, int32_t lane, troupe_error* error) {
  return with(session, error, [&](auto& s) { return s.begin_lane({lane}); });
}

troupe_status troupe_begin_microbatch(troupe_session* session, int32_t index, troupe_error* error) {
  return with(session, error, [&](auto& s) { return s.begin_microbatch(index); });
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
    outcome->gradient_norm = step.gradient_norm;
    outcome->clip_factor = step.clip_factor;
    outcome->seconds = seconds(step.times.total);
    outcome->waited_seconds = seconds(step.times.exposed);
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

troupe_status troupe_save(troupe_session* session, const char* common, uint64_t* sequence,
                          troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    troupe::core::Value value;
    if (common != nullptr) {
      auto parsed = troupe::core::parse_value(common);
      if (!parsed) return fail(Errc::invalid_argument, "common: {}", parsed.error().message);
      value = *std::move(parsed);
    }
    const std::uint64_t begun = TRY(s.save(value));
    if (sequence != nullptr) *sequence = begun;
    return {};
  });
}

troupe_status troupe_take_save(troupe_session* session, int32_t* found, troupe_save_result* result,
                               troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    if (found == nullptr) return missing("found");
    for (auto& save : s.take_saves()) session->saves.push_back(std::move(save));
    *found = session->saves.empty() ? 0 : 1;
    if (*found == 0) return {};
    const auto save = std::move(session->saves.front());
    session->saves.pop_front();
    if (result == nullptr) return {};
    result->sequence = save.sequence;
    result->step = save.step.value;
    result->bytes = save.bytes;
    result->committed = save.committed ? 1 : 0;
    copy_text(result->name, save.name);
    copy_text(result->message, save.committed ? save.warning : save.committed.error().message);
    return {};
  });
}

troupe_status troupe_wait_saves(troupe_session* session, troupe_error* error) {
  return with(session, error, [](auto& s) { return s.wait_saves(); });
}

troupe_status troupe_restore(troupe_session* session, const char* name, troupe_restored* restored,
                             troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    troupe::actors::RestoreOptions options;
    if (name != nullptr) options.name = name;
    const auto found = TRY(s.restore(options));
    session->restored_common = found ? TRY(troupe::core::value_text(found->common)) : std::string();
    if (restored == nullptr) return {};
    restored->found = found ? 1 : 0;
    restored->step = s.next_step().value;
    copy_text(restored->name, found ? found->name : std::string());
    return {};
  });
}

size_t troupe_restored_common(const troupe_session* session, char* text, size_t capacity) {
  const std::string_view common = session == nullptr ? std::string_view() : session->restored_common;
  if (text != nullptr && capacity > 0) {
    const std::size_t count = std::min(common.size(), capacity - 1);
    std::memcpy(text, common.data(), count);
    text[count] = '\0';
  }
  return common.size() + 1;
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
