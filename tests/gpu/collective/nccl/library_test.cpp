// Which NCCL will do, and what is said of one that will not.
#include "gpu/collective/nccl/library.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/nccl_emulation/fake_nccl.hpp"

namespace troupe::gpu {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

NcclApi table(int version, std::set<std::string> newer = {}) {
  return FakeNccl().start_process([](NativeStream, const auto&) {}).api(version, std::move(newer));
}

TEST(NcclLibrary, ThatIsMissingIsNamedWithAdvice) {
  const auto missing = open_nccl_library({.names = {"libtroupe-has-no-such.so.2"}});

  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, core::Errc::unavailable);
  EXPECT_THAT(missing.error().message,
              HasSubstr("NCCL was not found: looked for libtroupe-has-no-such.so.2"));
  EXPECT_THAT(missing.error().message, HasSubstr("install it"));
  EXPECT_THAT(missing.error().message, HasSubstr("TROUPE_NCCL_LIBRARY"));
}

TEST(NcclLibrary, ThatIsAnotherLibraryLacksTheFirstFunction) {
  const auto other = open_nccl_library({.names = {"libc.so.6"}});

  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code, core::Errc::unavailable);
  EXPECT_THAT(other.error().message, HasSubstr("ncclGetVersion"));
}

TEST(NcclLibrary, WithoutAFunctionThatTroupeNeedsIsRefused) {
  NcclApi api = table(22809);
  api.comm_abort = nullptr;

  EXPECT_THAT(make_nccl_library(std::move(api)).error().message, HasSubstr("the function ncclCommAbort"));
}

TEST(NcclLibrary, ThatIsTooOldIsRefused) {
  const auto old = make_nccl_library(table(21704));

  ASSERT_FALSE(old.has_value());
  EXPECT_THAT(old.error().message, HasSubstr("expected version 2.18.0 or newer, found 2.17.4"));
}

TEST(NcclLibrary, HasTheCapabilitiesOfItsFunctionsAndVersion) {
  const auto plain = make_nccl_library(table(22809, {"ncclCommShrink", "ncclCommRevoke"})).value();
  EXPECT_EQ(plain->capabilities.version, 22809);
  EXPECT_TRUE(plain->capabilities.shrink);
  EXPECT_TRUE(plain->capabilities.revoke);
  EXPECT_FALSE(plain->capabilities.grow);
  EXPECT_FALSE(plain->capabilities.abortable_symmetric);
  EXPECT_TRUE(plain->capabilities.implicit_launch_order);
  EXPECT_TRUE(plain->capabilities.restarts_in_process);
  EXPECT_TRUE(plain->capabilities.registers_memory);

  const auto old = make_nccl_library(table(21800)).value();
  EXPECT_FALSE(old->capabilities.shrink) << "a table without the newer functions";
  EXPECT_FALSE(old->capabilities.implicit_launch_order);
  EXPECT_FALSE(old->capabilities.registers_memory);

  const auto newer = make_nccl_library(table(23003, {"ncclCommGrow", "ncclCommQueryProperties"})).value();
  EXPECT_TRUE(newer->capabilities.grow);
  EXPECT_TRUE(newer->capabilities.query_properties);
  EXPECT_TRUE(newer->capabilities.several_ranks_on_gpu);
}

TEST(NcclLibrary, ThatIgnoresLaunchOrderSaysWhatMayHappen) {
  const auto older = make_nccl_library(table(22601)).value();
  const auto newer = make_nccl_library(table(22602)).value();

  EXPECT_THAT(older->warnings, ElementsAre(AllOf(HasSubstr("NCCL 2.26.1 "), HasSubstr("for ever"),
                                                 HasSubstr("install 2.26.2 or newer"))));
  EXPECT_THAT(newer->warnings, IsEmpty());
}

TEST(NcclLibrary, RegistersMemoryOnlyWithAllFunctionsForIt) {
  using Forget = void (*)(NcclApi&);
  for (const Forget forget : std::initializer_list<Forget>{
           [](NcclApi& api) { api.mem_alloc = nullptr; }, [](NcclApi& api) { api.mem_free = nullptr; },
           [](NcclApi& api) { api.comm_register = nullptr; },
           [](NcclApi& api) { api.comm_deregister = nullptr; }}) {
    NcclApi api = table(22809);
    forget(api);
    EXPECT_FALSE(make_nccl_library(std::move(api)).value()->capabilities.registers_memory);
  }
}

TEST(NcclLibrary, WithAKnownDefectCarriesAWarning) {
  EXPECT_THAT(make_nccl_library(table(22805)).value()->warnings, ::testing::ElementsAre(HasSubstr("2.28.5")));
  EXPECT_THAT(make_nccl_library(table(22809)).value()->warnings, ::testing::IsEmpty());
}

}  // namespace
}  // namespace troupe::gpu
