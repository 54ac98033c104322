//! Assigns each parameter's gradient a place in a bucket.

use super::parameter::Parameter;
use crate::dtype::Dtype;
use std::ops::Range;

/// Location of a parameter's gradient.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) bucket: usize,
    /// Range of the parameter's elements in the bucket.
    pub(crate) range: Range<usize>,
}

/// Gradients that have the same type and are sent together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Type of all elements in the bucket.
    pub dtype: Dtype,
    /// Indices of the parameters, in the order in which their elements are stored.
    pub parameters: Vec<usize>,
    /// Total number of elements in the bucket.
    pub count: usize,
    /// Total size of these elements, in bytes.
    pub bytes: usize,
}

/// Maximum bucket sizes, in bytes. A parameter that exceeds the limit gets its own bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) first_bytes: usize,
    pub(crate) bytes: usize,
}

/// All buckets, in launch order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) buckets: Vec<Bucket>,
    /// Location of each parameter's gradient, indexed by parameter.
    pub(crate) places: Vec<Place>,
}

impl Layout {
    /// Fills buckets with `parameters` in the order given by `order`, which contains their indices.
    /// All elements of a bucket have the same type. Buckets are launched in the order of their last
    /// parameters because, if gradients become complete in the given order, a bucket is full when
    /// the gradient of its last parameter is complete.
    pub(crate) fn new(parameters: &[Parameter], order: &[usize], limits: Limits) -> Self {
        // The buckets, each with the position of its last parameter in `order`.
        let mut buckets: Vec<(usize, Bucket)> = Vec::new();
        let mut limit = limits.first_bytes;
        for (at, number) in order.iter().copied().enumerate() {
            let parameter = &parameters[number];
            let same_type = |(_, bucket): &(usize, Bucket)| bucket.dtype == parameter.dtype;
            let mut open = buckets.iter().rposition(same_type);
            if open.is_some_and(|open| buckets[open].1.bytes + parameter.bytes() > limit) {
                open = None;
                limit = limits.bytes;
            }
            let index = open.unwrap_or(buckets.len());
            if open.is_none() {
                let bucket = Bucket {
                    dtype: parameter.dtype,
                    parameters: Vec::new(),
                    count: 0,
                    bytes: 0,
                };
                buckets.push((at, bucket));
            }
            let (last, bucket) = &mut buckets[index];
            *last = at;
            bucket.parameters.push(number);
            bucket.count += parameter.count();
            bucket.bytes += parameter.bytes();
        }
        buckets.sort_by_key(|(last, _)| *last);
        let buckets: Vec<_> = buckets.into_iter().map(|(_, bucket)| bucket).collect();
        Self {
            places: places(parameters, &buckets),
            buckets,
        }
    }
}

fn places(parameters: &[Parameter], buckets: &[Bucket]) -> Vec<Place> {
    let mut places = vec![Place::default(); parameters.len()];
    for (
        bucket,
        Bucket {
            parameters: all, ..
        },
    ) in buckets.iter().enumerate()
    {
        let mut end = 0;
        for number in all {
            let range = end..end + parameters[*number].count();
            end = range.end;
            places[*number] = Place { bucket, range };
        }
    }
    places
}

#[cfg(test)]
mod tests;
