#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.hpp"
#include "gpu/elements.hpp"
#include "gpu/kernels.hpp"
#include "gpu/stream.hpp"
#include "tests/gpu/rig.hpp"

namespace troupe::gpu {

/// Where kernels run: at once on memory of the host, or on a stream of a device.
class Place {
 public:
  explicit Place(std::unique_ptr<Rig> rig, bool at_once) : rig_(std::move(rig)) {
    if (!at_once) stream_ = rig_->device().create_stream({.name = "kernels"}).value();
  }

  /// `call` is given the stream, or nothing: run([&](auto... stream) { zero(view, stream...); });
  template <class Call>
  void run(Call call) {
    if (stream_) {
      call(stream_.get());
    } else {
      call();
    }
  }

  Rig& rig() { return *rig_; }
  Buffer allocate(std::size_t bytes) { return rig_->device().allocate(bytes).value(); }
  /// When the stream is done.
  void read(ConstBufferView source, void* destination);
  void write(const void* source, BufferView destination) { rig_->write(source, destination); }

 private:
  std::unique_ptr<Rig> rig_;
  Stream stream_;
};

struct PlaceUnderTest {
  std::string name;
  DeviceUnderTest device;
  bool at_once = false;

  friend std::ostream& operator<<(std::ostream& stream, const PlaceUnderTest& place) {
    return stream << place.name;
  }
};

/// Every device under test but the simulated one, which runs the host's kernels; and, with a host device, the
/// forms without a stream.
std::vector<PlaceUnderTest> places_under_test();

/// Elements at a place that own their memory.
class Vector {
 public:
  Vector(Place& place, core::DType dtype, std::span<const float> values);
  Vector(Place& place, core::DType dtype, std::size_t count)
      : place_(&place), dtype_(dtype), count_(count), memory_(place.allocate(count * core::size_of(dtype))) {}
  Vector(const Vector& other);
  Vector(Vector&& other) = default;

  Elements elements() const { return {view(), dtype_}; }
  BufferView view() const { return memory_.view(); }
  std::size_t count() const { return count_; }
  /// When the place's stream is done.
  std::vector<float> values() const;
  void assign(std::span<const float> values);

 private:
  Place* place_;
  core::DType dtype_;
  std::size_t count_;
  Buffer memory_;
};

/// One T at a place.
template <class T>
class Single {
 public:
  explicit Single(Place& place, const T& value = T{}) : place_(&place), memory_(place.allocate(sizeof(T))) {
    place.write(&value, memory_.view());
  }

  BufferView view() const { return memory_.view(); }
  T value() const {
    T found;
    place_->read(memory_.view(), &found);
    return found;
  }

 private:
  Place* place_;
  Buffer memory_;
};

/// A test of kernels at each place; the parameter may hold more.
class AtPlace {
 protected:
  /// Skips the test where the machine has no such device.
  void open(const PlaceUnderTest& under_test) {
    auto rig = under_test.device.make();
    if (!rig && rig.error().code == core::Errc::unavailable) GTEST_SKIP() << rig.error().message;
    ASSERT_TRUE(rig) << rig.error().message;
    place_ = std::make_unique<Place>(std::move(*rig), under_test.at_once);
  }

  Place& place() { return *place_; }
  template <class Call>
  void run(Call call) {
    place_->run(std::move(call));
  }
  Vector vector(core::DType dtype, std::span<const float> values) { return {*place_, dtype, values}; }
  Vector vector(core::DType dtype, std::size_t count) { return {*place_, dtype, count}; }

 private:
  std::unique_ptr<Place> place_;
};

/// The elements have these values to the last bit, where all NaN are one.
void expect_same(const std::vector<float>& found, const std::vector<float>& expected);
void expect_same(const Vector& found, const std::vector<float>& expected);

}  // namespace troupe::gpu
