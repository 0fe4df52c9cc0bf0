#include <string_view>

#include "apps/gpt/pretrained/huggingface_config.hpp"
#include "apps/gpt/text/tokenizer.hpp"
#include "core/errors.hpp"
#include "tests/fuzz/targets.hpp"

namespace troupe::fuzz {

int fuzz_trainer_config(const std::uint8_t* data, std::size_t size) {
  namespace gpt = apps::gpt;
  const auto read = gpt::read_huggingface_config({reinterpret_cast<const char*>(data), size});
  if (!read || !gpt::validate(read->model)) return 0;
  const auto written = gpt::write_huggingface_config(read->model, core::DType::f32);
  if (!written) return 0;
  const auto again = gpt::read_huggingface_config(*written);
  CHECK(again.has_value(), "a config.json that was written can be read");
  CHECK(again->model.width == read->model.width && again->model.head_size() == read->model.head_size() &&
            again->model.key_heads() == read->model.key_heads() &&
            again->model.query_key_norm == read->model.query_key_norm,
        "a model is the same after writing and reading");
  return 0;
}

int fuzz_tokenizer(const std::uint8_t* data, std::size_t size) {
  auto tokenizer = apps::gpt::Tokenizer::create({reinterpret_cast<const char*>(data), size});
  if (!tokenizer) return 0;
  const auto tokens = tokenizer->encode("It's  12\u00e9\n\nwords <|end|>\xf0\x9f\x98\x80 \u2581the<w>");
  if (!tokens) return 0;
  const auto text = tokenizer->decode(*tokens);
  CHECK(tokenizer->decode(*tokens, {.with_special = false}).size() <= text.size(),
        "special tokens only add to a text");
  return 0;
}

}  // namespace troupe::fuzz
