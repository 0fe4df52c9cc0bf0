#include "core/models/pipeline.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::core {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TransformerConfig of_layers(std::int64_t layers, std::int64_t stages) {
  TransformerConfig config;
  config.num_layers = layers;
  config.pipeline_model_parallel_size = stages;
  return config;
}

TEST(PipelineShards, SplitsLayersThatDoNotDivide) {
  EXPECT_THAT(pipeline_shards(61, 8).value(), ElementsAre(6, 8, 8, 8, 8, 8, 8, 7));
  EXPECT_THAT(pipeline_shards(61, 7).value(), ElementsAre(8, 9, 9, 9, 9, 9, 8));
  EXPECT_THAT(pipeline_shards(61, 1).value(), ElementsAre(61));
  EXPECT_THAT(pipeline_shards(61, 2).value(), ElementsAre(30, 31));
}

TEST(PipelineShards, RefusesWhatHasNoSplit) {
  for (const auto& [layers, stages] : {std::pair{61, 0}, {10, 16}, {5, 4}, {9, 8}})
    EXPECT_EQ(pipeline_shards(layers, stages).error().code, Errc::invalid_argument)
        << layers << "/" << stages;
}

TEST(PlaceLayers, GivesEveryChunkAsMany) {
  auto config = of_layers(8, 2);
  config.virtual_pipeline_model_parallel_size = 2;

  const auto chunks = place_layers(config).value();

  // global layer = vpp * (L / VPP) + pp * n + local
  EXPECT_THAT(chunks, ElementsAre(ElementsAre(LayerChunk{0, 2}, LayerChunk{4, 2}),
                                  ElementsAre(LayerChunk{2, 2}, LayerChunk{6, 2})));
}

TEST(PlaceLayers, TakesOtherNumbersInFirstAndLastStage) {
  auto config = of_layers(61, 8);
  config.num_layers_in_first_pipeline_stage = 6;
  config.num_layers_in_last_pipeline_stage = 7;

  const auto chunks = place_layers(config).value();

  EXPECT_EQ(chunks[0][0], (LayerChunk{0, 6}));
  EXPECT_EQ(chunks[1][0], (LayerChunk{6, 8}));
  EXPECT_EQ(chunks[7][0], (LayerChunk{54, 7}));
}

TEST(PlaceLayers, SaysWhatWouldDoWhenLayersDoNotDivide) {
  const auto refused = place_layers(of_layers(61, 8));

  EXPECT_THAT(refused.error().message, HasSubstr("num_layers_in_first_pipeline_stage=6 and "
                                                 "num_layers_in_last_pipeline_stage=7 would do"));
  EXPECT_THAT(place_layers(of_layers(61, 2)).error().message,
              HasSubstr("num_layers_in_first_pipeline_stage=30 would do"));
}

TEST(MeshPlace, CountsTensorParallelFastestAndPipelineSlowest) {
  const MeshSizes sizes{.tp = 2, .cp = 2, .pp = 2};

  EXPECT_EQ(place_of(Rank{5}, sizes), (MeshPlace{.tp = 1, .cp = 0, .dp = 0, .pp = 1}));
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(rank_of(place_of(Rank{rank}, sizes), sizes), Rank{rank});
}

}  // namespace
}  // namespace troupe::core
