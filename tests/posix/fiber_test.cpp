#include "posix/fiber.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace troupe::posix {
namespace {

TEST(Fiber, GoesOnWhereItYielded) {
  std::string said;
  Fiber* self = nullptr;
  Fiber fiber([&] {
    said += 'a';
    self->yield();
    said += 'c';
  });
  self = &fiber;

  fiber.resume();
  EXPECT_FALSE(fiber.has_ended());
  said += 'b';
  fiber.resume();

  EXPECT_TRUE(fiber.has_ended());
  EXPECT_EQ(said, "abc");
}

/// The inner fiber's work makes the outer one yield, as a trainer's does in the simulator.
TEST(Fiber, MayYieldFromWithinAnother) {
  std::vector<int> order;
  Fiber* outer_self = nullptr;
  Fiber outer([&] {
    Fiber* inner_self = nullptr;
    Fiber inner([&] {
      order.push_back(1);
      outer_self->yield();
      order.push_back(3);
      inner_self->yield();
      order.push_back(5);
    });
    inner_self = &inner;
    inner.resume();
    order.push_back(4);
    inner.resume();
    EXPECT_TRUE(inner.has_ended());
  });
  outer_self = &outer;

  outer.resume();
  order.push_back(2);
  outer.resume();

  EXPECT_TRUE(outer.has_ended());
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4, 5}));
}

int deeper(int depth) {
  std::array<volatile char, 4096> page{};
  page[0] = static_cast<char>(depth);
  return depth == 0 ? page[0] : deeper(depth - 1) + page[0];
}

TEST(FiberDeathTest, AStackThatIsTooSmallEndsTheProcess) {
  Fiber deep([] { deeper(100); }, 64 << 10);

  EXPECT_DEATH(deep.resume(), "");
}

}  // namespace
}  // namespace troupe::posix
