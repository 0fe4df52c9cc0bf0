#include <troupe/torch.hpp>

#include <ATen/ATen.h>
#include <dlfcn.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdlib>
#include <cstring>
#include <optional>

namespace troupe::torch {
namespace {

constexpr const char* kAll = "all-ranks";

void* library() {
  static void* const loaded = [] {
    const char* named = std::getenv("TROUPE_LIBRARY");
    // RTLD_DEEPBIND: the library finds its own libraries before what LibTorch exports.
    void* const found = dlopen(named != nullptr && *named != '\0' ? named : "libtroupe.so.0",
                               RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (found == nullptr) {
      throw Error(TROUPE_UNAVAILABLE, std::string("the library of Troupe cannot be loaded: ") + dlerror() +
                                          "; install libtroupe0, or name the file in TROUPE_LIBRARY");
    }
    return found;
  }();
  return loaded;
}

template <typename Function>
Function* found(const char* name) {
  void* const symbol = dlsym(library(), name);
  if (symbol == nullptr) throw Error(TROUPE_MISMATCH, std::string("the library has no function ") + name);
  return reinterpret_cast<Function*>(symbol);
}

#define TROUPE_FUNCTION(name) found<decltype(troupe_##name)>("troupe_" #name)

/// A call whose last argument is the error.
template <typename Function, typename... Arguments>
void call(Function* function, Arguments... arguments) {
  troupe_error error = {TROUPE_OK, ""};
  if (function(arguments..., &error) != TROUPE_OK) throw Error(error.status, error.message);
}

troupe_dtype dtype_of(const std::string& name, const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || !tensor.device().is_cpu()) {
    throw Error(TROUPE_UNAVAILABLE, "parameter " + name + " is on " + tensor.device().str() +
                                        "; expected a dense tensor on the CPU");
  }
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return TROUPE_F32;
    case at::kHalf:
      return TROUPE_F16;
    case at::kBFloat16:
      return TROUPE_BF16;
    default:
      throw Error(TROUPE_UNAVAILABLE, "parameter " + name + " is " + c10::toString(tensor.scalar_type()) +
                                          "; expected float, bfloat16 or half: convert the model");
  }
}

struct Parameter {
  std::string name;
  at::Tensor tensor;
  at::Tensor slot;  ///< where this lane's gradient is added, in f32
  std::uint32_t number = 0;
  bool is_trained = true;
  bool is_ready = false;
};

void fill(std::int64_t first, float* values, std::size_t count, void* context) {
  const auto& flat = *static_cast<const at::Tensor*>(context);
  std::memcpy(values, flat.data_ptr<float>() + first, count * sizeof(float));
}

}  // namespace

struct Trainer::State {
  troupe_options* options = nullptr;
  troupe_session* session = nullptr;
  std::vector<Parameter> parameters;
  bool is_in_backward = false;

  ~State() {
    for (Parameter& parameter : parameters)
      ::torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, nullptr);
    if (session != nullptr) TROUPE_FUNCTION(session_free)(session);
    if (options != nullptr) TROUPE_FUNCTION(options_free)(options);
  }
};

struct Trainer::Hook final : ::torch::autograd::PostAccumulateGradHook {
  Hook(State& state, std::size_t index) : state(state), index(index) {}

  void operator()(const at::Tensor& tensor) override {
    Parameter& parameter = state.parameters[index];
    at::Tensor gradient = tensor.grad();
    tensor.mutable_grad().reset();
    if (!state.is_in_backward) {
      throw Error(TROUPE_INVALID_ARGUMENT,
                  "backward() reached parameter " + parameter.name +
                      " outside of Trainer::step(), which takes the backward of losses itself");
    }
    if (gradient.data_ptr() != parameter.slot.data_ptr()) parameter.slot.add_(gradient);
    parameter.is_ready = true;
    call(TROUPE_FUNCTION(gradient_ready), state.session, parameter.number);
  }

  State& state;
  std::size_t index;
};

Trainer::Trainer(const Parameters& parameters, const Options& options) : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.options = TROUPE_FUNCTION(options_new)();
  for (const auto& [name, value] : options) {
    call(TROUPE_FUNCTION(options_set), state.options, name.c_str(), value.c_str());
  }
  for (const auto& [name, tensor] : parameters) {
    bool is_tied = false;
    for (const Parameter& other : state.parameters) is_tied |= other.tensor.is_same(tensor);
    if (is_tied) continue;
    const auto shape = tensor.sizes();
    call(TROUPE_FUNCTION(options_add_parameter), state.options, name.c_str(), shape.data(), shape.size(),
         dtype_of(name, tensor), tensor.requires_grad() ? 0U : static_cast<std::uint32_t>(TROUPE_FROZEN));
    const auto number = static_cast<std::uint32_t>(state.parameters.size());
    state.parameters.push_back({name, tensor, {}, number, tensor.requires_grad(), false});
  }
  std::int32_t ranks = 0;
  call(TROUPE_FUNCTION(place), state.options, nullptr, &ranks);
  if (ranks > 1) {
    const std::vector<std::int32_t> part_of(static_cast<std::size_t>(ranks));
    call(TROUPE_FUNCTION(options_add_group), state.options, kAll, part_of.data(), part_of.size());
  }
  call(TROUPE_FUNCTION(session_join), state.options, &state.session);
  begin();
}

Trainer::~Trainer() = default;

/// First values, and the model's tensors become the session's.
void Trainer::begin() {
  share_first_values();
  State& state = *state_;
  for (Parameter& parameter : state.parameters) {
    at::Tensor flat = parameter.tensor.detach().to(at::kFloat).contiguous().view(-1);
    call(TROUPE_FUNCTION(write_parameter), state.session, parameter.number, &fill, &flat);
    void* data = nullptr;
    call(TROUPE_FUNCTION(parameter), state.session, parameter.number, &data, nullptr);
    parameter.tensor.set_data(at::from_blob(data, parameter.tensor.sizes(), parameter.tensor.options()));
    parameter.tensor.mutable_grad().reset();
    if (parameter.is_trained) {
      ::torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor,
                                                       std::make_unique<Hook>(state, parameter.number));
    }
  }
}

void Trainer::share_first_values() {
  State& state = *state_;
  if (world_size() == 1) return;
  troupe_group* group = nullptr;
  call(TROUPE_FUNCTION(group_of), state.session, kAll, &group);
  for (Parameter& parameter : state.parameters) {
    at::Tensor sent = parameter.tensor.detach().contiguous();
    std::uint64_t posted = 0;
    call(TROUPE_FUNCTION(group_broadcast), group, sent.data_ptr(), static_cast<std::size_t>(sent.nbytes()),
         TROUPE_U8, 0, &posted);
    call(TROUPE_FUNCTION(group_wait), group, posted);
    parameter.tensor.detach().copy_(sent);
  }
}

int Trainer::rank() const {
  return TROUPE_FUNCTION(rank)(state_->session);
}
int Trainer::world_size() const {
  return TROUPE_FUNCTION(world_size)(state_->session);
}
std::int64_t Trainer::next_step() const {
  return TROUPE_FUNCTION(next_step)(state_->session);
}

troupe_step_outcome Trainer::step(double learning_rate,
                                  const std::function<at::Tensor(std::int64_t, int)>& loss_of) {
  State& state = *state_;
  const std::int64_t step = next_step();
  troupe_step_outcome outcome = {};
  try {
    call(TROUPE_FUNCTION(begin_step), state.session, learning_rate);
    for (int i = 0; i < TROUPE_FUNCTION(lane_count)(state.session); ++i) {
      const int lane = TROUPE_FUNCTION(lane)(state.session, i);
      call(TROUPE_FUNCTION(begin_lane), state.session, lane);
      for (const Parameter& parameter : state.parameters) {
        call(TROUPE_FUNCTION(before_use), state.session, parameter.number);
      }
      at::manual_seed(static_cast<std::uint64_t>(step) * 0xC2B2AE3D27D4EB4FU +
                      static_cast<std::uint64_t>(lane) * 0x165667B19E3779F9U);
      play(step, lane, loss_of(step, lane));
    }
    call(TROUPE_FUNCTION(finish_step), state.session, nullptr, 0U, &outcome);
    call(TROUPE_FUNCTION(publish_all), state.session);
  } catch (const std::exception& failure) {
    state.is_in_backward = false;
    troupe_error first = {TROUPE_OK, ""};
    const std::string reason = "rank " + std::to_string(rank()) + " gave up: " + failure.what();
    TROUPE_FUNCTION(abandon)(state.session, reason.c_str(), &first);
    throw;
  }
  return outcome;
}

/// The backward of a lane.
void Trainer::play(std::int64_t step, int lane, const at::Tensor& loss) {
  State& state = *state_;
  if (!loss.defined() || loss.numel() != 1 || !loss.requires_grad()) {
    throw Error(TROUPE_INVALID_ARGUMENT, "expected the loss of lane " + std::to_string(lane) + " of step " +
                                             std::to_string(step) +
                                             " as a tensor of one element that depends on parameters");
  }
  call(TROUPE_FUNCTION(begin_backward), state.session);
  for (Parameter& parameter : state.parameters) {
    if (!parameter.is_trained) continue;
    void* data = nullptr;
    call(TROUPE_FUNCTION(gradient), state.session, parameter.number, &data, nullptr);
    parameter.slot = at::from_blob(data, parameter.tensor.sizes(), at::kFloat);
    parameter.is_ready = false;
    if (parameter.tensor.scalar_type() == at::kFloat) parameter.tensor.mutable_grad() = parameter.slot;
  }
  state.is_in_backward = true;
  const double scale = TROUPE_FUNCTION(loss_scale)(state.session);
  (scale == 1 ? loss : loss * scale).backward();
  state.is_in_backward = false;
  for (Parameter& parameter : state.parameters) {
    parameter.tensor.mutable_grad().reset();
    if (parameter.is_trained && !parameter.is_ready) {
      throw Error(TROUPE_INVALID_ARGUMENT,
                  "no gradient reached " + parameter.name + " in lane " + std::to_string(lane) +
                      "; freeze what the loss does not depend on: requires_grad_(false)");
    }
  }
  call(TROUPE_FUNCTION(end_lane), state.session, loss.item<double>());
}

bool Trainer::restore() {
  troupe_restored restored = {};
  call(TROUPE_FUNCTION(restore), state_->session, nullptr, &restored);
  if (restored.found != 0) call(TROUPE_FUNCTION(publish_all), state_->session);
  return restored.found != 0;
}

void Trainer::save() {
  call(TROUPE_FUNCTION(save), state_->session, nullptr, nullptr);
}

void Trainer::close() {
  State& state = *state_;
  call(TROUPE_FUNCTION(publish_all), state.session);
  call(TROUPE_FUNCTION(wait_saves), state.session);
  for (Parameter& parameter : state.parameters) {
    ::torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, nullptr);
    parameter.tensor.set_data(parameter.tensor.detach().clone());
    parameter.slot.reset();
  }
  call(TROUPE_FUNCTION(leave), state.session);
}

}  // namespace troupe::torch
