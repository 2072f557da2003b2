package edgedecode.app

/** A graph of a model as a provider opens it; [width] and [slots] are 0 where any number will do. */
data class BundleGraph(
    val file: String,
    val provider: String,
    val width: Int,
    val slots: Int,
    val binary: String,
    val socs: Set<Int>,
)

/** One role's model; [window]: positions that sliding-window layers see, 0 without such layers. */
data class BundleModel(val weights: String, val window: Int, val graphs: List<BundleGraph>)

/** How the app decodes: the part of the plan that it needs. */
data class DevicePlan(val context: Int, val threads: Int, val draftLength: Int, val leastChance: Double)

/** The parts of `bundle.json` that the app needs. Every path is relative to the bundle. */
data class Bundle(
    val name: String,
    val models: Map<String, BundleModel>,
    val tokenizer: String,
    val ends: Set<Int>,
    val maxTokens: Int,
    val sampling: Map<String, Double>,
    val plan: DevicePlan,
) {
    /** Return the graphs of a role for the NPU of the chip numbered [soc], or with null for the processor. */
    fun graphs(role: String, soc: Int?): List<BundleGraph> = models[role]?.graphs.orEmpty().filter {
        if (soc == null) it.provider == "cpu" else it.provider == "qnn" && soc in it.socs
    }

    /** Return the files that the app opens on this chip: the NPU's graphs, and the processor's to fall back to. */
    fun needed(soc: Int?): Set<String> {
        val found = mutableSetOf(tokenizer)
        for ((role, model) in models) {
            found += model.weights
            for (graph in graphs(role, null) + if (soc == null) emptyList() else graphs(role, soc)) {
                found += setOf(graph.file, graph.binary)
            }
        }
        return found - ""
    }

    /** The sampler of the model's own defaults; greedy where it has none. */
    fun sampler(seed: Long) = Sampler(
        temperature = sampling["temperature"] ?: 0.0,
        topK = sampling["top_k"]?.toInt() ?: 0,
        topP = sampling["top_p"] ?: 1.0,
        seed = seed,
    )

    companion object {
        const val NAME = "bundle.json"
        const val SOC_MAP = "soc_map.json"
        private const val FORMAT = "edgedecode-bundle"
        private const val VERSION = 1

        /** Read `bundle.json`. Throws BundleException with one line. */
        fun parse(text: String): Bundle {
            val root = Fields(parseJson(text), "bundle")
            if (root.text("format") != FORMAT) throw BundleException("this is not a bundle of edgedecode")
            if (root.int("version") > VERSION) {
                throw BundleException("the bundle is newer than this app, which reads version $VERSION")
            }
            val plan = root.fields("plan")
            val generation = root.fields("generation")
            return Bundle(
                name = root.text("name"),
                models = root.fields("models").each().mapValues { model(it.value) },
                tokenizer = root.text("tokenizer"),
                ends = generation.ints("end_token_ids").toSet(),
                maxTokens = generation.optional("max_tokens")?.toInt() ?: Int.MAX_VALUE,
                sampling = generation.optionalNumbers("sampling"),
                plan = DevicePlan(
                    context = plan.int("context"),
                    threads = plan.int("threads"),
                    draftLength = plan.int("draft_length"),
                    leastChance = plan.number("least_chance").toDouble(),
                ),
            )
        }

        /** Return the number of the chip that reports [model] as its `Build.SOC_MODEL`; null: not in the map. */
        fun chip(socMap: String, model: String): Int? =
            Fields(parseJson(socMap), Bundle.SOC_MAP).list("chips")
                .firstOrNull { model in it.texts("soc_models") }?.int("soc")

        private fun model(fields: Fields) = BundleModel(
            weights = fields.text("weights"),
            window = fields.int("window"),
            graphs = fields.list("graphs").map {
                BundleGraph(
                    file = it.text("file"),
                    provider = it.text("provider"),
                    width = it.int("width"),
                    slots = it.int("slots"),
                    binary = it.text("binary"),
                    socs = it.ints("socs").toSet(),
                )
            },
        )
    }
}

/** A JSON object, read with checks: [path] names it in complaints. */
class Fields(value: Any?, private val path: String) {
    private val found = value as? Map<*, *> ?: throw BundleException("$path is no JSON object")

    fun text(name: String): String = found[name] as? String ?: missing(name)

    fun number(name: String): Number = found[name] as? Number ?: missing(name)

    fun optional(name: String): Number? = found[name] as? Number

    fun int(name: String): Int = number(name).toInt()

    fun fields(name: String) = Fields(found[name], "$path.$name")

    fun each(): Map<String, Fields> =
        found.entries.associate { (name, value) -> "$name" to Fields(value, "$path.$name") }

    fun list(name: String): List<Fields> = all(name).mapIndexed { index, each -> Fields(each, "$path.$name.$index") }

    fun ints(name: String): List<Int> = all(name).map { (it as? Number)?.toInt() ?: missing(name) }

    fun texts(name: String): List<String> = all(name).map { it as? String ?: missing(name) }

    fun optionalNumbers(name: String): Map<String, Double> = (found[name] as? Map<*, *>).orEmpty().entries
        .mapNotNull { (key, value) -> (value as? Number)?.let { "$key" to it.toDouble() } }.toMap()

    private fun all(name: String): List<*> = found[name] as? List<*> ?: missing(name)

    private fun missing(name: String): Nothing = throw BundleException("$path.$name is missing or of the wrong type")
}
