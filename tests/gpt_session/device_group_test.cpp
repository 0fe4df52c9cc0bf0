#include "apps/gpt/rank/session_device_group.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "actors/session/session.hpp"
#include "apps/gpt/stage/stage_memory.hpp"
#include "core/convert.hpp"
#include "core/errors.hpp"
#include "tests/gpu_session/company.hpp"

namespace troupe::apps::gpt {
namespace {

using core::DType;
using core::Numerics;
using core::Result;

/// A rank's group, and memory of its device.
class DeviceMember {
 public:
  DeviceMember(SessionDeviceGroup& group, StageMemory memory) : group_(group), memory_(memory) {}

  SessionDeviceGroup& group() { return group_; }

  Result<gpu::Buffer> put(const std::vector<float>& values, DType dtype) {
    std::vector<std::byte> elements(values.size() * core::size_of(dtype));
    core::convert_elements(DType::f32, std::as_bytes(std::span(values)).data(), dtype, elements.data(),
                           values.size());
    auto buffer = TRY(memory_.allocate(std::max<std::size_t>(elements.size(), 1)));
    if (!elements.empty()) TRY(memory_.write(elements, buffer.view().subview(0, elements.size())));
    return buffer;
  }
  Result<std::vector<float>> get(gpu::BufferView view, DType dtype) {
    std::vector<std::byte> elements(view.bytes);
    std::vector<float> values(view.bytes / core::size_of(dtype));
    if (elements.empty()) {
      TRY(memory_.settle());  // peers read what this rank gave
      return values;
    }
    TRY(memory_.read(view, elements));
    core::convert_elements(dtype, elements.data(), DType::f32,
                           std::as_writable_bytes(std::span(values)).data(), values.size());
    return values;
  }

  Result<std::vector<float>> sum(const std::vector<float>& values, DType dtype) {
    const auto buffer = TRY(put(values, dtype));
    const auto scratch = TRY(memory_.allocate(sum_scratch_bytes(group_.size(), values.size(), dtype)));
    TRY(group_.sum({buffer.view(), dtype}, scratch.view()));
    return get(buffer.view(), dtype);
  }
  Result<std::vector<float>> scatter_sum(const std::vector<float>& all, DType dtype,
                                         const std::vector<std::size_t>& counts) {
    const std::size_t size = core::size_of(dtype), own_bytes = counts[group_.index()] * size;
    const auto buffer = TRY(put(all, dtype));
    const auto own = TRY(memory_.allocate(all.size() * size));
    const auto scratch = TRY(memory_.allocate(group_.size() * all.size() * size));
    const auto part = own.view().subview(0, own_bytes);
    TRY(group_.scatter_sum(gpu::ConstElements(buffer.view(), dtype), {part, dtype}, counts, scratch.view()));
    return get(part, dtype);
  }
  Result<std::vector<float>> gather(const std::vector<float>& own, DType dtype,
                                    const std::vector<std::size_t>& counts, std::size_t total) {
    const auto buffer = TRY(put(own, dtype));
    const auto all = TRY(memory_.allocate(total * core::size_of(dtype)));
    const auto part = buffer.view().subview(0, own.size() * core::size_of(dtype));
    TRY(group_.gather(gpu::ConstElements(part, dtype), {all.view(), dtype}, counts));
    return get(all.view(), dtype);
  }
  Result<std::vector<float>> max(const std::vector<float>& values, DType dtype) {
    const auto buffer = TRY(put(values, dtype));
    TRY(group_.max({buffer.view(), dtype}));
    return get(buffer.view(), dtype);
  }

 private:
  SessionDeviceGroup& group_;
  StageMemory memory_;
};

/// `play` by every rank of a job with tensor-parallel groups of `size`, until all have left.
void play_ranks(int ranks, int size, Numerics numerics,
                const std::function<Result<void>(int rank, DeviceMember& member)>& play) {
  actors::EmulatedCompany company;
  const auto ends = company.run<bool>(ranks, [&](actors::RankWorld& world) -> Result<bool> {
    actors::SessionOptions options;
    options.training.tensor_parallel = size;
    options.training.numerics = numerics;
    const auto session = TRY(actors::Session::join(world, options, {{"weight", {4}}}));
    SessionDeviceGroup group(static_cast<std::size_t>(size),
                             static_cast<std::size_t>(world.rank().value % size), numerics);
    StageMemory memory(world.device());
    memory.use(TRY(session->compute_stream()));
    group.open(*TRY(session->group("tp")), memory.compute());
    DeviceMember member(group, memory);
    TRY(play(world.rank().value, member));
    TRY(session->leave());
    return true;
  });
  for (const auto& end : ends) EXPECT_TRUE(end) << end.error().message;
  EXPECT_EQ(company.violations(), std::vector<std::string>{});
}

/// Each rank adds a power of two of its own, so that a sum says exactly which ranks were counted, and that
/// each was counted once.
TEST(SessionDeviceGroup, SumsCountEachTensorParallelRankOnce) {
  for (const auto numerics : {Numerics::ordered, Numerics::fast}) {
    for (const auto& [ranks, size] : {std::pair{3, 3}, {4, 2}}) {
      play_ranks(ranks, size, numerics, [size = size](int rank, DeviceMember& member) -> Result<void> {
        const auto n = static_cast<std::size_t>(size);
        const int first = rank / size * size;
        const auto expected = static_cast<float>(((1 << size) - 1) << first);
        const auto own = static_cast<float>(1 << rank);
        for (const auto dtype : {DType::f32, DType::bf16}) {
          for (const std::size_t elements : {std::size_t{1}, n, 7 * n + 1}) {
            EXPECT_EQ(TRY(member.sum(std::vector<float>(elements, own), dtype)),
                      std::vector<float>(elements, expected));
          }
          // Uneven parts, and one of no elements.
          std::vector<std::size_t> counts(n);
          std::size_t total = 0;
          for (std::size_t i = 0; i < n; ++i) total += counts[i] = 3 * i;
          const std::size_t count = counts[member.group().index()];
          EXPECT_EQ(TRY(member.scatter_sum(std::vector<float>(total, own), dtype, counts)),
                    std::vector<float>(count, expected));
          std::vector<float> gathered;
          for (std::size_t i = 0; i < n; ++i)
            gathered.insert(gathered.end(), counts[i],
                            static_cast<float>(1 << (first + static_cast<int>(i))));
          EXPECT_EQ(TRY(member.gather(std::vector<float>(count, own), dtype, counts, total)), gathered);
          EXPECT_EQ(TRY(member.max({own, -own}, dtype)),
                    (std::vector<float>{static_cast<float>(1 << (first + size - 1)),
                                        -static_cast<float>(1 << first)}));
        }
        return {};
      });
    }
  }
}

/// 1 + 2^-24 + 2^-24 is 1 from the left and the next float from the right. In bf16 the sum is rounded once:
/// 1 + 2^-8 is 1, and 1 + 2 * 2^-8 the next number, also from the left.
TEST(SessionDeviceGroup, OrderedSumsAddByMemberAndRoundOnce) {
  constexpr float kHalf = 0x1p-24F, kHalfOfBf16 = 0x1p-8F;
  play_ranks(3, 3, Numerics::ordered, [&](int rank, DeviceMember& member) -> Result<void> {
    const float forth[] = {1, kHalf, kHalf}, back[] = {kHalf, kHalf, 1};
    const float narrow[] = {1, kHalfOfBf16, kHalfOfBf16};
    for (std::size_t elements = 1; elements <= 4; ++elements) {
      const auto sum_of = [&](const float(&of)[3], DType dtype) {
        return member.sum(std::vector<float>(elements, of[rank]), dtype);
      };
      EXPECT_EQ(TRY(sum_of(forth, DType::f32)), std::vector<float>(elements, 1.0F));
      EXPECT_EQ(TRY(sum_of(back, DType::f32)), std::vector<float>(elements, 1.0F + 2 * kHalf));
      EXPECT_EQ(TRY(sum_of(narrow, DType::bf16)), std::vector<float>(elements, 1.0F + 2 * kHalfOfBf16));
    }
    return {};
  });
}

}  // namespace
}  // namespace troupe::apps::gpt
