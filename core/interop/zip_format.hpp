#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe::core {

/// Signatures and sizes of ZIP records; see PKWARE's APPNOTE.TXT 6.3.
inline constexpr std::uint32_t kZipLocal = 0x0403'4b50;
inline constexpr std::uint32_t kZipDescriptor = 0x0807'4b50;
inline constexpr std::uint32_t kZipCentral = 0x0201'4b50;
inline constexpr std::uint32_t kZipEnd = 0x0605'4b50;
inline constexpr std::uint32_t kZip64End = 0x0606'4b50;
inline constexpr std::uint32_t kZip64Locator = 0x0706'4b50;

inline constexpr std::size_t kZipLocalBytes = 30;
inline constexpr std::size_t kZipCentralBytes = 46;
inline constexpr std::size_t kZipEndBytes = 22;
inline constexpr std::size_t kZip64EndBytes = 56;
inline constexpr std::size_t kZip64LocatorBytes = 20;

inline constexpr std::uint16_t kZip64Extra = 0x0001;
/// In a 32-bit field: the value is in the ZIP64 extra field.
inline constexpr std::uint64_t kZipTooLarge = 0xffff'ffff;

inline constexpr std::uint16_t kZipEncrypted = 0x0001;
inline constexpr std::uint16_t kZipHasDescriptor = 0x0008;
inline constexpr std::uint16_t kZipUtf8 = 0x0800;

}  // namespace troupe::core
