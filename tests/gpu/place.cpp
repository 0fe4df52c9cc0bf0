#include "tests/gpu/place.hpp"

#include <cstring>

#include "tests/gpu/host/kernels/numbers.hpp"

namespace troupe::gpu {

using namespace std::chrono_literals;

void Place::read(ConstBufferView source, void* destination) {
  if (stream_) {
    const auto synchronized = stream_->synchronize(60s);
    ASSERT_TRUE(synchronized) << synchronized.error().message;
  }
  rig_->read(source, destination);
}

std::vector<PlaceUnderTest> places_under_test() {
  std::vector<PlaceUnderTest> places;
  for (const auto& device : devices_under_test()) {
    if (device.name == "simulated") continue;
    if (device.name == "host") places.push_back({"at_once", device, true});
    places.push_back({device.name, device, false});
  }
  return places;
}

Vector::Vector(Place& place, core::DType dtype, std::span<const float> values)
    : Vector(place, dtype, values.size()) {
  assign(values);
}

Vector::Vector(const Vector& other) : Vector(*other.place_, other.dtype_, other.count_) {
  std::vector<std::byte> bytes(memory_.bytes());
  place_->read(other.memory_.view(), bytes.data());
  place_->write(bytes.data(), memory_.view());
}

void Vector::assign(std::span<const float> values) {
  ASSERT_EQ(values.size(), count_);
  const auto bytes = codes_of(dtype_, values);
  place_->write(bytes.data(), memory_.view());
}

std::vector<float> Vector::values() const {
  const std::size_t size = core::size_of(dtype_);
  std::vector<std::byte> bytes(count_ * size);
  place_->read(memory_.view(), bytes.data());
  std::vector<float> found(count_);
  for (std::size_t i = 0; i < count_; ++i) found[i] = reference_widen(dtype_, &bytes[i * size]);
  return found;
}

void expect_same(const std::vector<float>& found, const std::vector<float>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(same(found[i], expected[i]))
        << "element " << i << ": " << found[i] << ", expected " << expected[i];
  }
}

void expect_same(const Vector& found, const std::vector<float>& expected) {
  expect_same(found.values(), expected);
}

}  // namespace troupe::gpu
