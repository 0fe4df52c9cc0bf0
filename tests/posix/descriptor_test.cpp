#include "posix/descriptor.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <utility>

namespace troupe::posix {
namespace {

int open_null() {
  return ::open("/dev/null", O_RDONLY | O_CLOEXEC);
}

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) != -1;
}

TEST(Descriptor, ClosesWhatItOwnsAtItsScopesEnd) {
  int fd = -1;
  {
    const Descriptor owner(open_null());
    fd = owner.get();
    ASSERT_TRUE(owner.is_open());
    ASSERT_TRUE(is_open(fd));
  }

  EXPECT_FALSE(is_open(fd));
}

TEST(Descriptor, OwnsNothingAfterItWasReleasedOrMoved) {
  Descriptor first(open_null());
  const int fd = first.get();
  {
    Descriptor second(std::move(first));
    EXPECT_FALSE(first.is_open());
    EXPECT_EQ(second.release(), fd);
    EXPECT_FALSE(second.is_open());
  }

  EXPECT_TRUE(is_open(fd));
  const Descriptor closer(fd);
}

TEST(Descriptor, ClosesWhatItOwnedWhenItIsGivenAnother) {
  Descriptor owner(open_null());
  const int before = owner.get();
  const int after = open_null();

  owner = Descriptor(after);

  EXPECT_FALSE(is_open(before));
  EXPECT_EQ(owner.get(), after);
  EXPECT_TRUE(is_open(after));
}

}  // namespace
}  // namespace troupe::posix
