#include "apps/troupe/doctor/findings.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "gpu/devices.hpp"

namespace troupe::apps {
namespace {

TEST(Doctor, FindsThisMachineFitAndSaysWhatIsAbsent) {
  const auto findings = examine();

  const auto find = [&](const std::string& name) {
    return std::find_if(findings.begin(), findings.end(),
                        [&](const Finding& each) { return each.name == name; });
  };
  for (const char* name : {"kernel", "memory", "dev_shm", "openblas", "backend_tcp"}) {
    ASSERT_NE(find(name), findings.end()) << name;
    EXPECT_NE(find(name)->status, Finding::Status::broken) << name;
  }
  // What it says about NCCL depends on the machine; it must say something.
  EXPECT_NE(find("backend_nccl"), findings.end());
  ASSERT_NE(find("cuda"), findings.end());
  EXPECT_EQ(find("cuda")->value.rfind("in this build", 0) == 0, gpu::is_built_with_cuda());
  for (const Finding& finding : findings) {
    EXPECT_FALSE(finding.value.empty()) << finding.name;
    EXPECT_EQ(finding.status == Finding::Status::ok, finding.advice.empty()) << finding.name;
  }
}

}  // namespace
}  // namespace troupe::apps
