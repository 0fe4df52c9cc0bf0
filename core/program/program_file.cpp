#include "core/program/program_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <type_traits>

#include "core/enum_names.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"
#include "core/program/program_fields.hpp"
#include "core/program/program_limits.hpp"
#include "core/values/json_object.hpp"

namespace troupe::core {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;

constexpr std::string_view kFormat = "troupe programs 2";
constexpr std::string_view kPlacementLetters = "RPF";
constexpr auto kResidencies = enum_names<Residency>("resident", "on_demand");
constexpr auto kUses = enum_names<UnitUse>("none", "forward", "forward_and_backward");

std::string_view name_of(Residency residency) {
  return kResidencies[residency];
}
std::string_view name_of(UnitUse use) {
  return kUses[use];
}

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};
template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};
template <class T>
struct IsUnless : std::false_type {};
template <class T>
struct IsUnless<Unless<T>> : std::true_type {};

template <class T>
Ordered put(const T& value) {
  if constexpr (std::is_same_v<T, Placements>) {
    std::string letters;
    for (const Placement placement : value) letters += kPlacementLetters[static_cast<std::size_t>(placement)];
    return letters;
  } else if constexpr (IsVector<T>::value) {
    Ordered list = Ordered::array();
    for (const auto& element : value) list.push_back(put(element));
    return list;
  } else if constexpr (IsOptional<T>::value) {
    return value ? put(*value) : Ordered();
  } else if constexpr (std::is_enum_v<T>) {
    return std::string(name_of(value));
  } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
    return value;
  } else {
    Ordered object = Ordered::object();
    // Visited by one function for both ways, of which this one changes nothing.
    visit_fields(const_cast<T&>(value), [&](const char* name, const auto& field) {
      if constexpr (IsUnless<std::decay_t<decltype(field)>>::value) {
        if (*field.value != field.otherwise) object[name] = put(*field.value);
      } else {
        object[name] = put(field);
      }
    });
    return object;
  }
}

/// Remembers the first thing that is wrong, and where it is.
class Reader {
 public:
  template <class T>
  void read(const Json& json, T& value) {
    if (!wrong_.empty()) return;
    if constexpr (std::is_same_v<T, Placements>) {
      read_placements(json, value);
    } else if constexpr (IsVector<T>::value) {
      read_list(json, value);
    } else if constexpr (IsOptional<T>::value) {
      if (!json.is_null()) read(json, value.emplace());
    } else if constexpr (std::is_enum_v<T>) {
      read_name(json, value);
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!json.is_boolean()) return complain("true or false", json);
      value = json.get<bool>();
    } else if constexpr (std::is_integral_v<T>) {
      read_number(json, value);
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!json.is_string()) return complain("a text", json);
      value = json.get<std::string>();
    } else {
      read_object(json, value);
    }
  }

  Result<void> finish() const {
    if (wrong_.empty()) return {};
    return fail(Errc::corrupt, "{}", wrong_);
  }

 private:
  void complain(std::string_view expected, const Json& found) {
    wrong_ = fmt::format("{}: expected {}, found {}", path_.empty() ? "the file" : path_, expected,
                         quoted_excerpt(found.dump(-1, ' ', true, Json::error_handler_t::replace)));
  }

  template <class T>
  void read_number(const Json& json, T& value) {
    constexpr auto kMost = std::numeric_limits<T>::max();
    const bool fits =
        json.is_number_unsigned()
            ? json.get<std::uint64_t>() <= static_cast<std::uint64_t>(kMost)
            : json.is_number_integer() && std::is_signed_v<T> &&
                  json.get<std::int64_t>() >= static_cast<std::int64_t>(std::numeric_limits<T>::min());
    if (!fits) return complain("a whole number that fits", json);
    value = json.get<T>();
  }

  template <class T>
  void read_name(const Json& json, T& value) {
    const auto* text = json.get_ptr<const std::string*>();
    for (std::size_t i = 0; text != nullptr && i < enum_count<T>(); ++i) {
      value = static_cast<T>(i);
      if (name_of(value) == *text) return;
    }
    complain("a name that is known", json);
  }

  void read_placements(const Json& json, Placements& value) {
    const auto* text = json.get_ptr<const std::string*>();
    if (text == nullptr || text->find_first_not_of(kPlacementLetters) != text->npos) {
      return complain("letters R, P and F", json);
    }
    for (const char letter : *text) value.push_back(static_cast<Placement>(kPlacementLetters.find(letter)));
  }

  template <class T>
  void read_list(const Json& json, std::vector<T>& value) {
    if (!json.is_array()) return complain("a list", json);
    const auto length = path_.size();
    for (std::size_t i = 0; i < json.size() && wrong_.empty(); ++i) {
      path_ += fmt::format("[{}]", i);
      read(json[i], value.emplace_back());
      path_.resize(length);
    }
  }

  template <class T>
  void read_object(const Json& json, T& value) {
    if (!json.is_object()) return complain("an object", json);
    const auto length = path_.size();
    std::size_t taken = 0;
    visit_fields(value, [&](const char* name, auto&& field) {
      constexpr bool kMayMiss = IsUnless<std::decay_t<decltype(field)>>::value;
      if (!wrong_.empty()) return;
      const auto found = json.find(name);
      if (kMayMiss && found == json.end()) return;
      path_ += (path_.empty() ? "" : ".") + std::string(name);
      if (found == json.end()) {
        wrong_ = path_ + " is missing";
      } else if (found != json.end()) {
        ++taken;
        if constexpr (kMayMiss) {
          read(*found, *field.value);
        } else {
          read(*found, field);
        }
      }
      path_.resize(length);
    });
    // The format's own name is beside the fields of the file.
    if constexpr (std::is_same_v<T, ProgramFile>) ++taken;
    if (wrong_.empty() && taken != json.size()) {
      wrong_ = fmt::format("{} has {} fields, {} are known", path_.empty() ? "the file" : path_, json.size(),
                           taken);
    }
  }

  std::string path_;
  std::string wrong_;
};

/// What programs are compared by: ranks that share one have other coordinates.
std::string identity(Program program) {
  program.coordinates.clear();
  return put(program).dump();
}

}  // namespace

ProgramFile file_of(const JobPrograms& job) {
  ProgramFile file{.sizes = job.sizes, .parts = {}};
  for (const Program& program : job.programs) file.parts.push_back({{}, program});
  for (std::size_t place = 0; place < job.of_place.size(); ++place) {
    const auto at = static_cast<int>(place);
    auto& places = file.parts[static_cast<std::size_t>(job.of_place[place])].places;
    if (places.empty() || places.back().last + 1 != at) places.push_back({at, at});
    places.back().last = at;
  }
  return file;
}

std::string to_text(const ProgramFile& file) {
  Ordered json{{"format", kFormat}};
  json.update(put(file));
  return json.dump(1) + "\n";
}

Result<ProgramFile> parse_program_file(std::string_view text) {
  const auto json = TRY(parse_json_object(text, "programs"));
  const auto format = json.find("format");
  if (format == json.end() || *format != kFormat) {
    return fail(Errc::corrupt,
                "expected \"format\": \"{}\", as `troupe plan program --output` writes it, found {}", kFormat,
                format == json.end() ? "none" : quoted_excerpt(format->dump()));
  }
  ProgramFile file;
  Reader reader;
  reader.read(json, file);
  TRY(reader.finish());
  TRY(check_limits(file));
  return file;
}

Result<JobPrograms> join_files(std::span<const NamedProgramFile> files) {
  if (files.empty()) return fail(Errc::invalid_argument, "there are no files of programs");
  JobPrograms job{.sizes = files[0].file.sizes, .programs = {}, .of_place = {}};
  std::size_t ranks = 1;
  for (const int size : job.sizes) ranks *= static_cast<std::size_t>(size);
  job.of_place.assign(ranks, -1);
  std::vector<const NamedProgramFile*> from(ranks);
  std::vector<std::string> known;
  for (const NamedProgramFile& one : files) {
    if (one.file.sizes != job.sizes) {
      return fail(Errc::invalid_argument,
                  "{} is from a job on {} ranks, {} from one on {}; give programs of one job", files[0].name,
                  fmt::join(job.sizes, "x"), one.name, fmt::join(one.file.sizes, "x"));
    }
    for (const auto& part : one.file.parts) {
      const auto text = identity(part.program);
      const auto found = std::find(known.begin(), known.end(), text);
      const auto index = static_cast<int>(found - known.begin());
      if (found == known.end()) {
        known.push_back(text);
        job.programs.push_back(part.program);
      }
      for (const auto& [first, last] : part.places) {
        for (int place = first; place <= last; ++place) {
          const auto at = static_cast<std::size_t>(place);
          if (from[at] != nullptr) {
            return fail(Errc::invalid_argument,
                        "rank {} has a program in {} and another in {}; give one of them", place,
                        from[at]->name, one.name);
          }
          from[at] = &one;
          job.of_place[at] = index;
        }
      }
    }
  }
  const auto missing = std::find(job.of_place.begin(), job.of_place.end(), -1);
  if (missing != job.of_place.end()) {
    return fail(Errc::invalid_argument,
                "rank {} of {} has no program in these files; give those of all ranks",
                missing - job.of_place.begin(), ranks);
  }
  return job;
}

}  // namespace troupe::core
