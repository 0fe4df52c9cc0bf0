#include "core/mx_blocks.hpp"

#include <algorithm>

#include "gpu/host/kernels/blocks.hpp"
#include "gpu/host/kernels/instructions.hpp"
#include "gpu/kernel_checks.hpp"
#include "gpu/kernels.hpp"
#include "gpu/mx_arithmetic.hpp"

namespace troupe::gpu {
namespace {

constexpr auto kMxBlock = static_cast<std::size_t>(core::kMxBlockElements);
static_assert(kBlockElements % kMxBlock == 0, "no block of a kernel cuts one that shares a scale");

/// The scale of at most one block.
template <class Mx>
[[gnu::always_inline]] inline std::uint32_t scale_of(const float* values, std::size_t length) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < length; ++i) {
    const std::uint32_t magnitude = formats::bits_of(values[i]) & 0x7fff'ffffU;
    largest = formats::select(formats::is_above(magnitude, largest), magnitude, largest);
  }
  return Mx::scale_of(largest);
}

/// `rounded` may be `values`. The last block may be short.
template <class Mx>
struct RoundToMx {
  [[gnu::always_inline]] static void run(const float* values, float* rounded, std::size_t length) {
    for (std::size_t first = 0; first < length; first += kMxBlock) {
      const std::size_t end = std::min(first + kMxBlock, length);
      const std::uint32_t scale = scale_of<Mx>(values + first, end - first);
      for (std::size_t i = first; i < end; ++i) {
        const auto code = static_cast<std::uint8_t>(Mx::code_of(formats::bits_of(values[i]), scale));
        rounded[i] = formats::float_of(Mx::value_of(code, scale));
      }
    }
  }
};

template <class Mx>
struct PackMx {
  [[gnu::always_inline]] static void run(const float* values, std::uint8_t* codes, std::uint8_t* scales,
                                         std::size_t length) {
    for (std::size_t first = 0; first < length; first += kMxBlock) {
      const std::uint32_t scale = scale_of<Mx>(values + first, kMxBlock);
      *scales++ = static_cast<std::uint8_t>(scale);
      for (std::size_t i = first; i < first + kMxBlock; ++i) {
        codes[i] = static_cast<std::uint8_t>(Mx::code_of(formats::bits_of(values[i]), scale));
      }
    }
  }
};

template <class Mx>
struct UnpackMx {
  [[gnu::always_inline]] static void run(const std::uint8_t* codes, const std::uint8_t* scales, float* values,
                                         std::size_t length) {
    for (std::size_t first = 0; first < length; first += kMxBlock) {
      const std::uint32_t scale = *scales++;
      for (std::size_t i = first; i < first + kMxBlock; ++i) {
        values[i] = formats::float_of(Mx::value_of(codes[i], scale));
      }
    }
  }
};

/// Calls body(Mx{}) for the element's arithmetic.
template <class Body>
void with_mx(core::DType element, Body body) {
  element == core::DType::f8_e4m3 ? body(formats::MxE4m3{}) : body(formats::MxE5m2{});
}

}  // namespace

void round_to_mx(core::DType element, ConstElements source, Elements destination) {
  check_round_to_mx(element, source, destination);
  const Reader reader(source);
  const Writer writer(destination);
  Block block;
  Block rounded;
  with_mx(element, [&](auto mx) {
    for_each_block(source.count(), [&](std::size_t first, std::size_t length) {
      const float* values = reader.read(first, length, block.data());
      float* target = writer.target(first, rounded.data());
      run_best<RoundToMx<decltype(mx)>>(values, target, length);
      writer.commit(first, length, target);
    });
  });
}

void pack_mx(core::DType element, ConstElements source, BufferView packed) {
  check_mx(element, source.count(), source.count(), packed.bytes);
  const Reader reader(source);
  auto* codes = packed.as<std::uint8_t>().data();
  auto* scales = codes + source.count();
  Block block;
  with_mx(element, [&](auto mx) {
    for_each_block(source.count(), [&](std::size_t first, std::size_t length) {
      run_best<PackMx<decltype(mx)>>(reader.read(first, length, block.data()), codes + first,
                                     scales + first / kMxBlock, length);
    });
  });
}

void unpack_mx(core::DType element, ConstBufferView packed, std::size_t part, Elements destination) {
  check_mx(element, destination.count(), part, packed.bytes);
  const Writer writer(destination);
  const auto* codes = packed.as<std::uint8_t>().data();
  Block block;
  with_mx(element, [&](auto mx) {
    for (std::size_t start = 0; start < destination.count(); start += part) {
      const auto* scales = codes + part;
      for_each_block(part, [&](std::size_t first, std::size_t length) {
        float* target = writer.target(start + first, block.data());
        run_best<UnpackMx<decltype(mx)>>(codes + first, scales + first / kMxBlock, target, length);
        writer.commit(start + first, length, target);
      });
      codes += core::mx_bytes(static_cast<std::int64_t>(part));
    }
  });
}

}  // namespace troupe::gpu
