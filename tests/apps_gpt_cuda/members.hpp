#pragma once

#include <algorithm>
#include <barrier>
#include <functional>
#include <thread>
#include <vector>

#include "apps/gpt/model/device_group.hpp"
#include "tests/apps_gpt_cuda/on_gpu.hpp"

namespace troupe::apps::gpt {

/// Where members that are threads of this process meet.
struct DeviceRoom {
  explicit DeviceRoom(std::size_t size) : given(size), barrier(static_cast<std::ptrdiff_t>(size)) {}
  std::vector<std::vector<float>> given;  ///< by member
  std::barrier<> barrier;
};

/// A group of such members, whose values pass by the host, where they are added in f32 in the order of
/// members and rounded once. It needs no memory of the caller's, but looks that it was given enough.
class DeviceSliceGroup final : public DeviceTensorGroup {
 public:
  DeviceSliceGroup(DeviceRoom& room, std::size_t index, TestGpu& gpu)
      : room_(room), index_(index), gpu_(gpu) {}

  std::size_t size() const override { return room_.given.size(); }
  std::size_t index() const override { return index_; }

  core::Result<void> sum(gpu::Elements values, gpu::BufferView scratch) override {
    EXPECT_GE(scratch.bytes, sum_scratch_bytes(size(), values.count(), values.dtype));
    combine(values, [](float a, float b) { return a + b; });
    return {};
  }
  core::Result<void> max(gpu::Elements values) override {
    combine(values, [](float a, float b) { return b > a ? b : a; });
    return {};
  }
  core::Result<void> gather(gpu::ConstElements own, gpu::Elements all, const Counts& counts) override {
    std::vector<float> gathered;
    for (const auto& part : exchange(own)) gathered.insert(gathered.end(), part.begin(), part.end());
    std::size_t total = 0;
    for (std::size_t member = 0; member < size(); ++member) total += counts[member];
    EXPECT_EQ(own.count(), counts[index_]);
    EXPECT_EQ(gathered.size(), total);
    write(gathered, all);
    return {};
  }
  core::Result<void> scatter_sum(gpu::ConstElements all, gpu::Elements own, const Counts& counts,
                                 gpu::BufferView scratch) override {
    EXPECT_GE(scratch.bytes, size() * own.view.bytes);
    std::size_t first = 0;
    for (std::size_t member = 0; member < index_; ++member) first += counts[member];
    const auto given = exchange(all);
    std::vector<float> sums(own.count());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] = given[0][first + i];
      for (std::size_t member = 1; member < size(); ++member) sums[i] += given[member][first + i];
    }
    write(sums, own);
    return {};
  }

 private:
  template <class E>
  std::vector<float> read_as(gpu::ConstElements values) {
    return gpu_.get(reinterpret_cast<const E*>(values.view.data), values.count());
  }
  template <class E>
  void write_as(std::vector<float> values, gpu::Elements to) {
    const E* from = gpu_.put<E>(values);
    gpu::copy({reinterpret_cast<const std::byte*>(from), values.size() * sizeof(E)}, to.view, gpu_.stream());
  }

  std::vector<std::vector<float>> exchange(gpu::ConstElements values) {
    if (values.count() > 0)
      room_.given[index_] = values.dtype == DType::f32 ? read_as<float>(values) : read_as<Bf16>(values);
    else
      room_.given[index_].clear();
    room_.barrier.arrive_and_wait();
    auto all = room_.given;
    room_.barrier.arrive_and_wait();
    return all;
  }

  void write(const std::vector<float>& values, gpu::Elements to) {
    if (values.empty()) return;
    to.dtype == DType::f32 ? write_as<float>(values, to) : write_as<Bf16>(values, to);
  }

  template <class Operator>
  void combine(gpu::Elements values, Operator both) {
    const auto given = exchange(values);
    auto total = given[0];
    for (std::size_t member = 1; member < size(); ++member) {
      for (std::size_t i = 0; i < total.size(); ++i) total[i] = both(total[i], given[member][i]);
    }
    write(total, values);
  }

  DeviceRoom& room_;
  std::size_t index_;
  TestGpu& gpu_;
};

/// A share's parameters, parts of the varied ones of the whole model, and gradients that begin with zeros.
class PartsOnGpu {
 public:
  PartsOnGpu(const Case& of, const TensorShare& share, TestGpu& gpu)
      : gpu_(gpu), table_(config_of(of), share) {
    const auto values = varied_parameters(table_.whole().specs);
    for (std::size_t i = 0; i < table_.size(); ++i) {
      std::vector<float> part(table_.part().specs[i].elements());
      const PartLayout layout = table_.layout(i, share.index);
      for (std::int64_t run = 0; run < layout.runs; ++run)
        std::copy_n(values.tensors[i].data() + layout.first + run * layout.stride, layout.run,
                    part.data() + run * layout.run);
      parameters_.push_back(gpu_.put(part, of.dtype));
      gradients_.push_back(gpu_.room<float>(part.size()));
    }
  }

  std::vector<float> gradient(std::size_t parameter) {
    return gpu_.get(gradients_[parameter], table_.part().specs[parameter].elements());
  }

  const SharedTable& table() const { return table_; }
  UncutModel::Parameters parameters() const { return parameters_; }
  UncutModel::Gradients gradients() const { return gradients_; }

 private:
  TestGpu& gpu_;
  SharedTable table_;
  std::vector<const std::byte*> parameters_;
  std::vector<float*> gradients_;
};

/// One member's share of a model.
class MemberOnGpu {
 public:
  MemberOnGpu(const Case& of, Keep keep, DeviceRoom& room, const TensorShare& share)
      : group_(room, share.index, gpu_),
        parts_(of, share, gpu_),
        model_(create_cuda_model(config_of(of), of.shape, {of.dtype, false, keep}, gpu_.device(),
                                 gpu_.stream(), share, &group_)
                   .value()),
        is_masked_(of.decoder.is_masked) {}

  double pass(std::uint64_t seed, const StepHooks& hooks = {}) {
    const auto tokens = some_tokens(model_->shape(), seed),
               targets = some_targets(model_->shape(), seed, is_masked_);
    EXPECT_TRUE(model_->forward_backward(parts_.parameters(), parts_.gradients(), tokens, targets, hooks));
    return model_->take_losses().value().at(0);
  }

  std::vector<float> logits(std::size_t length) {
    auto sequence = some_tokens(model_->shape(), 5);
    sequence.resize(length);
    const auto found = model_->logits(parts_.parameters(), sequence, {}).value();
    return {found.begin(), found.end()};
  }

  std::vector<float> gradient(std::size_t parameter) { return parts_.gradient(parameter); }

  const SharedTable& table() const { return parts_.table(); }
  UncutModel& model() { return *model_; }

 private:
  TestGpu gpu_;
  DeviceSliceGroup group_;
  PartsOnGpu parts_;
  std::unique_ptr<UncutModel> model_;
  bool is_masked_;
};

/// `play` by every member at once, each in a thread of its own.
inline void play_on_gpus(const Case& of, Keep keep, std::size_t size, bool sequence,
                         const std::function<void(std::size_t index, MemberOnGpu& member)>& play) {
  DeviceRoom room(size);
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < size; ++i) {
    threads.emplace_back([&, i] {
      MemberOnGpu member(of, keep, room, {size, i, sequence});
      play(i, member);
    });
  }
}

}  // namespace troupe::apps::gpt
