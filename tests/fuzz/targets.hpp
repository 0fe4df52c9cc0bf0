#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string_view>

namespace troupe::fuzz {

/// Each takes any bytes for one of the formats that come from outside. It returns 0; what must never happen,
/// a crash or a document that is not the same after writing and reading, ends the process.
int fuzz_pickle(const std::uint8_t* data, std::size_t size);
int fuzz_zip(const std::uint8_t* data, std::size_t size);
int fuzz_torch_archive(const std::uint8_t* data, std::size_t size);
int fuzz_torch_shards(const std::uint8_t* data, std::size_t size);
int fuzz_dcp_metadata(const std::uint8_t* data, std::size_t size);
int fuzz_safetensors(const std::uint8_t* data, std::size_t size);
int fuzz_manifest(const std::uint8_t* data, std::size_t size);
int fuzz_huggingface_index(const std::uint8_t* data, std::size_t size);
int fuzz_model_config(const std::uint8_t* data, std::size_t size);
int fuzz_trainer_config(const std::uint8_t* data, std::size_t size);
int fuzz_tokenizer(const std::uint8_t* data, std::size_t size);
int fuzz_programs(const std::uint8_t* data, std::size_t size);

struct Target {
  /// Also the name of its folder in corpus/.
  std::string_view name;
  int (*run)(const std::uint8_t* data, std::size_t size);

  friend std::ostream& operator<<(std::ostream& out, const Target& of) { return out << of.name; }
};

inline constexpr std::array<Target, 12> kTargets{{
    {"pickle", fuzz_pickle},
    {"zip", fuzz_zip},
    {"torch_archive", fuzz_torch_archive},
    {"torch_shards", fuzz_torch_shards},
    {"dcp_metadata", fuzz_dcp_metadata},
    {"safetensors", fuzz_safetensors},
    {"manifest", fuzz_manifest},
    {"huggingface_index", fuzz_huggingface_index},
    {"model_config", fuzz_model_config},
    {"trainer_config", fuzz_trainer_config},
    {"tokenizer", fuzz_tokenizer},
    {"programs", fuzz_programs},
}};

}  // namespace troupe::fuzz
