/** The part of config.json that describes the model of text: `text_config` where an encoder reads pictures too, else all of it. */
export function languageConfig(config: Record<string, unknown>): Record<string, unknown> {
  const text = config.text_config
  return text !== null && typeof text === 'object' && !Array.isArray(text) ? (text as Record<string, unknown>) : config
}
