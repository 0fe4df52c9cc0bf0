#include "core/models/config_architecture.hpp"

#include <array>
#include <string>

#include "core/errors.hpp"

namespace troupe::core {

namespace {

using Json = nlohmann::json;

/// What wraps a model puts its name before that of the class, and so do the classes of other frameworks.
constexpr std::array<std::string_view, 4> kPrefixes{"FSDP", "Flax", "TF", "Unsloth"};

/// The class without wrappers, as it is called today.
std::string_view plain_name(std::string_view name) {
  // Before transformers had it.
  if (name == "LLaMAForCausalLM") return "LlamaForCausalLM";
  for (const auto prefix : kPrefixes) {
    if (!name.starts_with(prefix)) continue;
    const auto rest = name.substr(prefix.size());
    if (architecture_from_name(rest)) return rest;
  }
  return name;
}

/// Models with the maths and the tensors of another.
std::string_view plain_type(std::string_view model_type) {
  return model_type == "kimi_k2" ? "deepseek_v3" : model_type;
}

/// Empty if the file has none.
Result<std::string> model_type_of(const Json& config) {
  const auto found = config.find("model_type");
  if (found == config.end() || found->is_null()) return std::string();
  if (!found->is_string()) return fail(Errc::invalid_argument, "key 'model_type' is not text");
  return std::string(plain_type(found->get_ref<const std::string&>()));
}

Result<Architecture> by_model_type(std::string_view model_type) {
  for (std::size_t i = 0; i < kArchitectures; ++i) {
    const auto& facts = facts_of(static_cast<Architecture>(i));
    if (facts.model_type == model_type) return facts.architecture;
  }
  return fail(Errc::invalid_argument,
              "key 'architectures' is missing, and model_type '{}' is not one that is known; expected a list "
              "of exactly one name",
              model_type.substr(0, 80));
}

Result<Architecture> by_names(const Json& names) {
  if (!names.is_array()) return fail(Errc::invalid_argument, "key 'architectures' must be a list");
  std::string name;
  for (const auto& item : names) {
    if (!item.is_string()) return fail(Errc::invalid_argument, "key 'architectures' must be a list of names");
    const std::string next(plain_name(item.get_ref<const std::string&>()));
    if (!name.empty() && next != name)
      return fail(Errc::invalid_argument,
                  "key 'architectures' must be a list of exactly one name, found {} and {}", name, next);
    name = next;
  }
  return architecture_from_name(name);
}

}  // namespace

Result<Architecture> architecture_of_config(const Json& config) {
  const auto model_type = TRY(model_type_of(config));
  const auto names = config.find("architectures");
  const bool has_names = names != config.end() && !names->is_null() && !names->empty();
  const auto architecture = TRY(has_names ? by_names(*names) : by_model_type(model_type));
  const auto& facts = facts_of(architecture);
  if (!facts.missing.empty())
    return fail(Errc::unavailable, "{} is known but has no conversion: {}", facts.name, facts.missing);
  if (!model_type.empty() && model_type != facts.model_type)
    return fail(Errc::invalid_argument,
                "keys 'model_type' and 'architectures' disagree: {} and {}, whose model_type is {}; "
                "transformers' AutoModel follows model_type: set the wrong one with --key",
                model_type, facts.name, facts.model_type);
  return architecture;
}

}  // namespace troupe::core
