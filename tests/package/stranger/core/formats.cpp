// The place of a rank's part in a tensor that two ranks share, with Troupe's formats and maths alone.
#include <cstdio>
#include <troupe/core/sharded_tensor.hpp>
#include <troupe/core/value.hpp>

int main() {
  namespace core = troupe::core;
  const core::RankOffset second{.axis = 0, .offset = 1, .fragments = 2};
  const auto part = core::ShardedTensor::from_rank_offsets("weight", core::DType::bf16, {4, 8}, {&second, 1});
  if (!part) {
    std::fprintf(stderr, "%s\n", part.error().message.c_str());
    return 1;
  }
  const core::Value common = core::Value::Map{{"step", 3}};
  const bool right = part->global_shape == core::Shape{8, 8} && part->box().offset == core::Shape{4, 0} &&
                     part->bytes() == 64 && common.find("step")->as_int() == 3;
  return right ? 0 : 1;
}
