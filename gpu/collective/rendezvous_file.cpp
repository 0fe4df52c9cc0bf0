#include "gpu/collective/rendezvous_file.hpp"

#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>
#include <thread>

#include "core/errors.hpp"
#include "posix/entropy.hpp"

namespace troupe::gpu {

std::filesystem::path FileRendezvous::file_of(const std::string& key) const {
  std::string name = "key-";
  for (const char c : key) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '-') {
      name += c;
    } else {
      name += fmt::format("%{:02x}", static_cast<unsigned char>(c));
    }
  }
  return directory_ / name;
}

core::Result<void> FileRendezvous::set(const std::string& key, const std::string& value) {
  const std::filesystem::path file = file_of(key);
  std::filesystem::path temporary = file;
  temporary += fmt::format(".{}.part", posix::unique_name());
  std::ofstream out(temporary, std::ios::binary);
  out.write(value.data(), static_cast<std::streamsize>(value.size()));
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(temporary, file, error);
  if (!out || error) {
    return core::fail(core::Errc::io, "rendezvous: cannot write {}: {}; check the directory and its space",
                      file.string(), error ? error.message() : std::strerror(errno));
  }
  return {};
}

core::Result<std::string> FileRendezvous::get(const std::string& key, std::chrono::nanoseconds deadline) {
  const auto give_up = std::chrono::steady_clock::now() + deadline;
  for (;;) {
    std::ifstream in(file_of(key), std::ios::binary);
    if (in) return std::string(std::istreambuf_iterator<char>(in), {});
    if (std::chrono::steady_clock::now() >= give_up) {
      return core::fail(core::Errc::timeout,
                        "rendezvous: expected the key '{}' in {} within {} ms, but no member set it; look at "
                        "the members that did not start",
                        key, directory_.string(),
                        std::chrono::duration_cast<std::chrono::milliseconds>(deadline).count());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace troupe::gpu
