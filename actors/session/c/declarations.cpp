#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <utility>

#include "actors/session/c/calls.hpp"
#include "actors/session/c/options.hpp"
#include "actors/world/environment.hpp"
#include "core/errors.hpp"

using troupe::actors::c::call;
using troupe::actors::c::dtype_of;
using troupe::actors::c::missing;
using troupe::actors::c::pass_of;
using troupe::core::Errc;
using troupe::core::fail;
using troupe::core::Result;

namespace {

constexpr std::uint32_t kParameterFlags = TROUPE_NO_WEIGHT_DECAY | TROUPE_SHARED_EMBEDDING | TROUPE_EXPERT |
                                          TROUPE_COPY | TROUPE_FROZEN | TROUPE_ANY_SHAPE;

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

troupe_status troupe_options_add_setting(troupe_options* options, const char* name, const char* value,
                                         troupe_error* error) {
  return call(error, [&]() -> Result<void> {
    if (options == nullptr) return missing("options");
    if (name == nullptr) return missing("name");
    if (value == nullptr) return missing("value");
    options->session.configuration.emplace_back(name, value);
    return {};
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
    parameter.trainable = (flags & TROUPE_FROZEN) == 0;
    parameter.allow_shape_mismatch = (flags & TROUPE_ANY_SHAPE) != 0;
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

troupe_status troupe_options_set_of_group(troupe_options* options, uint32_t group, const char* name,
                                          const char* value, troupe_error* error) {
  return call(error, [&]() -> Result<void> {
    if (options == nullptr) return missing("options");
    if (name == nullptr) return missing("name");
    if (value == nullptr) return missing("value");
    auto& groups = options->session.training.groups;
    if (group > groups.size())
      return fail(Errc::invalid_argument, "there are {} groups of parameters, the next one is {}, found {}",
                  groups.size(), groups.size(), group);
    auto changed = group < groups.size() ? groups[group] : troupe::core::ParameterGroup();
    TRY(troupe::actors::set_option(changed, name, value));
    if (group == groups.size()) groups.emplace_back();
    groups[group] = changed;
    return {};
  });
}

troupe_status troupe_options_set_parameter_group(troupe_options* options, uint32_t parameter, uint32_t group,
                                                 troupe_error* error) {
  return call(error, [&]() -> Result<void> {
    TRY(added(options, parameter))->group = group;
    return {};
  });
}

troupe_status troupe_options_add_tensor(troupe_options* options, const char* name, void* memory,
                                        troupe_dtype dtype, const int64_t* shape, const int64_t* global_shape,
                                        const int64_t* offset, size_t axes, int32_t replica,
                                        troupe_error* error) {
  return call(error, [&]() -> Result<void> {
    if (options == nullptr) return missing("options");
    if (name == nullptr) return missing("name");
    if (shape == nullptr && axes > 0) return missing("shape");
    if (replica < 0)
      return fail(Errc::invalid_argument, "tensor {} has replica {}; give 0, or a number above it", name,
                  replica);
    if ((global_shape == nullptr) != (offset == nullptr))
      return missing(global_shape == nullptr ? "global_shape" : "offset");
    troupe::actors::TrainerTensor added;
    auto& tensor = added.tensor;
    tensor.key = name;
    tensor.replica_id = {replica};
    tensor.dtype = TRY(dtype_of(dtype));
    tensor.local_shape.assign(shape, shape + axes);
    if (global_shape == nullptr) {
      tensor.global_shape = tensor.local_shape;
      tensor.global_offset.assign(axes, 0);
    } else {
      tensor.global_shape.assign(global_shape, global_shape + axes);
      tensor.global_offset.assign(offset, offset + axes);
    }
    TRY(tensor.check());
    if (troupe::core::elements_of(tensor.local_shape) >
        std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(size_of(tensor.dtype)))
      return fail(Errc::invalid_argument, "tensor '{}' has 2^63 bytes or more", name);
    const auto bytes = static_cast<std::size_t>(tensor.bytes());
    if (memory == nullptr && bytes > 0) return missing("memory");
    added.memory = {static_cast<std::byte*>(memory), bytes};
    options->session.tensors.push_back(std::move(added));
    return {};
  });
}

troupe_status troupe_options_add_pass(troupe_options* options, troupe_pass kind, int32_t round,
                                      int32_t first_unit, int32_t end_unit, troupe_error* error) {
  return call(error, [&]() -> Result<void> {
    if (options == nullptr) return missing("options");
    options->session.passes.push_back({TRY(pass_of(kind)), round, first_unit, end_unit});
    return {};
  });
}
