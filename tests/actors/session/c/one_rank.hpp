#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "actors/session/c/troupe.h"

namespace troupe::actors {

/// A session of one rank with a matrix in f32 and a vector in bf16.
class CInterface : public ::testing::Test {
 protected:
  void SetUp() override {
    options_ = troupe_options_new();
    add("weight", {2, 3}, TROUPE_F32);
    add("bias", {5}, TROUPE_BF16);
  }
  void TearDown() override {
    troupe_session_free(session_);
    troupe_options_free(options_);
  }

  void add(const char* name, std::vector<std::int64_t> shape, troupe_dtype dtype) {
    ASSERT_EQ(troupe_options_add_parameter(options_, name, shape.data(), shape.size(), dtype, 0, &error_),
              TROUPE_OK)
        << error_.message;
  }
  void join() { ASSERT_EQ(troupe_session_join(options_, &session_, &error_), TROUPE_OK) << error_.message; }
  /// A step whose gradients are 1, and its loss 2.
  void step(troupe_step_outcome* outcome = nullptr) {
    ASSERT_EQ(troupe_begin_step(session_, 0.5, &error_), TROUPE_OK) << error_.message;
    ASSERT_EQ(troupe_begin_lane(session_, troupe_lane(session_, 0), &error_), TROUPE_OK) << error_.message;
    for (std::uint32_t p = troupe_parameter_count(session_); p-- > 0;) {
      void* data = nullptr;
      std::size_t bytes = 0;
      ASSERT_EQ(troupe_before_use(session_, p, &error_), TROUPE_OK) << error_.message;
      ASSERT_EQ(troupe_gradient(session_, p, &data, &bytes, &error_), TROUPE_OK) << error_.message;
      for (std::size_t i = 0; i < bytes / sizeof(float); ++i) static_cast<float*>(data)[i] += 1;
      ASSERT_EQ(troupe_gradient_ready(session_, p, &error_), TROUPE_OK) << error_.message;
    }
    ASSERT_EQ(troupe_end_lane(session_, 2, &error_), TROUPE_OK) << error_.message;
    ASSERT_EQ(troupe_finish_step(session_, nullptr, 0, outcome, &error_), TROUPE_OK) << error_.message;
  }
  void set(const char* name, const std::string& value) {
    ASSERT_EQ(troupe_options_set(options_, name, value.c_str(), &error_), TROUPE_OK) << error_.message;
  }

  troupe_options* options_ = nullptr;
  troupe_session* session_ = nullptr;
  troupe_error error_{};
};

/// The stretch of a parameter that is filled: element i becomes 10 x parameter + i.
inline void fill_by_number(std::int64_t first, float* values, std::size_t count, void* parameter) {
  const float base = 10 * static_cast<float>(*static_cast<std::uint32_t*>(parameter));
  for (std::size_t i = 0; i < count; ++i)
    values[i] = base + static_cast<float>(first) + static_cast<float>(i);
}

/// Two sharded units, of the matrix and of the vector.
class CInterfaceOfUnits : public CInterface {
 protected:
  void SetUp() override {
    CInterface::SetUp();
    set("strategy", "zero3");
    set("gathered-units", "1");
    set("optimizer", "sgd");
    set("weight-decay", "0");
    for (std::uint32_t p = 0; p < 2; ++p)
      ASSERT_EQ(troupe_options_set_unit(options_, p, p, &error_), TROUPE_OK) << error_.message;
    declare();
    join();
    for (std::uint32_t p = 0; p < 2; ++p)
      ASSERT_EQ(troupe_write_parameter(session_, p, fill_by_number, &p, &error_), TROUPE_OK)
          << error_.message;
  }
  /// More options.
  virtual void declare() {}
  /// The first values of a unit's parameter, and the gradient's where it is wanted.
  float* acquire(std::uint32_t unit, float** gradient = nullptr) {
    void* data = nullptr;
    EXPECT_EQ(troupe_acquire(session_, unit, &error_), TROUPE_OK) << error_.message;
    if (gradient != nullptr) {
      EXPECT_EQ(troupe_gradient(session_, unit, &data, nullptr, &error_), TROUPE_OK) << error_.message;
      *gradient = static_cast<float*>(data);
    }
    EXPECT_EQ(troupe_parameter(session_, unit, &data, nullptr, &error_), TROUPE_OK) << error_.message;
    return static_cast<float*>(data);
  }
};

}  // namespace troupe::actors
