package edgedecode.app

import java.util.PriorityQueue
import java.util.Random
import kotlin.math.exp

/**
 * Picks a token from a row of logits. [temperature] 0 is greedy; [topK] 0 and [topP] 1 keep every token.
 *
 * The same [seed] and the same rows give the same tokens. `decode` asks it once for each token of the answer.
 */
class Sampler(
    private val temperature: Double = 0.0,
    private val topK: Int = 0,
    private val topP: Double = 1.0,
    seed: Long = 0,
) : (FloatArray) -> Int {
    private val random = Random(seed)

    override fun invoke(row: FloatArray): Int {
        if (temperature <= 0) return likeliest(row)
        val largest = row[likeliest(row)]
        val weights = DoubleArray(row.size) { exp((row[it] - largest) / temperature) }
        val kept = kept(weights)
        var point = random.nextDouble() * kept.sumOf { weights[it] }
        for (token in kept) {
            point -= weights[token]
            if (point < 0) return token
        }
        return kept.first() // rounding
    }

    /** Return the tokens that can be picked: of the [topK] likeliest those that make up [topP] of the weight. */
    private fun kept(weights: DoubleArray): List<Int> {
        if (topK <= 0 && topP >= 1) return weights.indices.toList()
        // A vocabulary is too long to be sorted for each token. All tokens below `least` have less than 1 - topP
        // together, so none of them is kept.
        val least = (1 - topP) * weights.sum() / weights.size
        val few = if (topK > 0) top(weights) else weights.indices.filter { weights[it] >= least }
        val sorted = few.sortedByDescending { weights[it] }
        if (topP >= 1) return sorted
        var left = topP * if (topK > 0) sorted.sumOf { weights[it] } else weights.sum()
        return sorted.takeWhile { token -> (left > 0).also { left -= weights[token] } }
    }

    /** Return the [topK] tokens of the largest weights. */
    private fun top(weights: DoubleArray): List<Int> {
        val found = PriorityQueue<Int>(compareBy { weights[it] })
        for (token in weights.indices) {
            if (found.size == topK && weights[token] <= weights[found.peek()!!]) continue
            found.add(token)
            if (found.size > topK) found.poll()
        }
        return found.toList()
    }
}
