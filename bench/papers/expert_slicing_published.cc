#include "bench/papers/expert_slicing_published.h"

namespace convene::papers {
namespace {

constexpr PublishedLayer kSlicingLayers[] = {
    {8, 250, 8, {28.94, 9.58, 12.05}, {0.66, 3.80, 4.33}},
    {16, 250, 16, {57.26, 11.22, 14.21}, {0.97, 6.23, 6.13}},
    {32, 250, 32, {112.62, 15.71, 18.07}, {1.59, 10.96, 9.59}},
    {64, 250, 50, {174.65, 26.90, 25.58}, {2.54, 17.89, 15.89}},
    {128, 250, 50, {177.30, 48.77, 41.05}, {3.49, 30.35, 28.64}},
    {256, 250, 50, {183.19, 90.39, 73.38}, {6.76, 56.33, 53.79}},
    {128, 10, 50, {9.19, 37.58, 30.77}, {4.29, 27.17, 27.75}},
    {128, 100, 50, {75.49, 45.36, 36.07}, {4.30, 28.46, 28.34}},
    {128, 450, 50, {315.84, 51.66, 48.31}, {4.53, 32.43, 28.75}},
};

constexpr PublishedSlicing kByExperts[] = {
    {8, 8, 250, 8, 2.83, 2.35, 1.55, 1.19},      {16, 16, 250, 16, 4.92, 3.73, 2.46, 2.00},
    {32, 32, 250, 32, 6.84, 5.91, 3.35, 3.11},   {64, 64, 250, 50, 6.28, 6.45, 3.24, 3.42},
    {128, 128, 250, 50, 3.46, 4.06, 1.84, 2.10}, {256, 256, 250, 50, 1.94, 2.39, 1.04, 1.26},
};
constexpr PublishedSlicing kByBatch[] = {
    {10, 128, 10, 50, 0.24, 0.27, 0.19, 0.22},
    {100, 128, 100, 50, 1.58, 2.01, 0.89, 1.05},
    {250, 128, 250, 50, 3.46, 4.06, 1.84, 2.10},
    {450, 128, 450, 50, 5.91, 6.24, 2.90, 3.18},
};
// The file has 0 for all skews, since it was written as whole numbers; the names of the runs have
// them, in this order.
constexpr PublishedSlicing kBySkew[] = {
    {0.0, 128, 250, 50, 3.94, 4.36, 1.95, 2.29}, {0.2, 128, 250, 50, 3.63, 4.14, 1.88, 2.18},
    {0.4, 128, 250, 50, 3.62, 4.24, 1.88, 2.16}, {0.6, 128, 250, 50, 3.46, 4.06, 1.84, 2.10},
    {0.8, 128, 250, 50, 3.54, 4.17, 1.88, 2.20},
};
constexpr PublishedSlicing kBySkewedExperts[] = {
    {2, 128, 250, 90, 6.61, 7.34, 3.38, 3.74},  {13, 128, 250, 90, 6.12, 7.20, 3.23, 3.69},
    {26, 128, 250, 90, 6.51, 7.50, 3.42, 3.85}, {64, 128, 250, 90, 6.77, 7.56, 3.41, 4.01},
    {77, 128, 250, 90, 6.71, 7.55, 3.40, 3.94}, {103, 128, 250, 90, 6.89, 7.56, 3.44, 3.93},
};
constexpr SlicingFigure kSlicingFigures[] = {
    {"Fig. 6.2", "experts", kByExperts},
    {"Fig. 6.3", "batch", kByBatch},
    {"Fig. 6.4", "router skew", kBySkew},
    {"Fig. 6.5", "skewed experts, capacity factor 90", kBySkewedExperts},
};

}  // namespace

std::span<const PublishedLayer> PublishedLayers() { return kSlicingLayers; }

std::span<const SlicingFigure> SlicingFigures() { return kSlicingFigures; }

}  // namespace convene::papers
